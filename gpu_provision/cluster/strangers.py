"""What others have in a namespace, or as custom resources: looked for in every kind that the server has.

The metadata of objects is all that is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import NotFound
from gpu_provision.cluster.pool import RequestPool
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Refused, Rejected, Unreachable

_PARALLEL = 12

# What is in every namespace without anybody having put it there.
_ALWAYS_THERE = frozenset(
    {
        ("ConfigMap", "kube-root-ca.crt"),
        ("ConfigMap", "openshift-service-ca.crt"),
        ("ServiceAccount", "builder"),
        ("ServiceAccount", "default"),
        ("ServiceAccount", "deployer"),
    }
)
_MADE_BY_THE_SERVER = ("system:",)  # OpenShift's RoleBindings of every namespace
_PASSING = frozenset({"Event", "Endpoints", "EndpointSlice"})  # go by themselves with what they are about
_COMPUTED = ("metrics.k8s.io",)  # groups without objects of their own
_LIST_SECONDS = 30.0  # a group whose server is gone for good must not hold a removal up for longer
_ACCOUNT = "kubernetes.io/service-account.name"  # annotation of token Secrets, which go with the account


class Resource(NamedTuple):
    """A kind of namespaced object that can be listed."""

    group_version: str
    kind: str
    plural: str


def resources(cluster: Cluster) -> list[Resource]:
    """Return everything namespaced that a server can list, each in the version that it prefers.

    Raises:
        Unreachable: A server behind an aggregated API does not answer: then nobody knows what a namespace holds.
    """
    groups = cluster.ask("/apis").get("groups", ())
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    with RequestPool(cluster, _PARALLEL) as pool:
        return [each for found in pool.map(lambda version: list(_of(cluster, version)), versions) for each in found]


def _of(cluster: Cluster, version: str) -> Iterator[Resource]:
    if version.partition("/")[0].endswith(_COMPUTED):
        return
    try:
        found = cluster.ask(_prefix(version)).get("resources", ())
    except NotFound:
        return  # a definition that was deleted just now, whose group is named for a moment longer
    for each in found:
        if each["namespaced"] and "list" in each["verbs"] and "/" not in each["name"]:
            yield Resource(version, each["kind"], each["name"])


def _prefix(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def in_namespace(cluster: Cluster, namespace: str, kinds: Collection[Resource], ours: Collection[str]) -> list[str]:
    """Return what others have in a namespace, in words.

    What an object of the namespace owns goes with its owner and is not counted. A kind that we may not list counts:
    there may be something.

    Args:
        ours: Uids of objects that are ours.
    """
    with RequestPool(cluster, _PARALLEL) as pool:
        found = list(pool.map(lambda kind: _listed(cluster, namespace, kind), kinds))
    unknown = [kind.plural for kind, items in zip(kinds, found, strict=True) if items is None]
    there = [(kind.kind, item) for kind, items in zip(kinds, found, strict=True) for item in items or ()]
    uids = {item["metadata"]["uid"] for _, item in there} | set(ours)
    words = {_words(kind, item) for kind, item in there if _is_a_strangers(kind, item, uids, ours)}
    return [*sorted(words), *(f"{plural}, which we may not list" for plural in sorted(unknown))]


def _listed(cluster: Cluster, namespace: str, kind: Resource) -> list[Manifest] | None:
    path = f"{_prefix(kind.group_version)}/namespaces/{namespace}/{kind.plural}"
    try:
        return list(cluster.ask(path, retry_seconds=_LIST_SECONDS).get("items") or ())
    except NotFound:
        return []
    except (Refused, Rejected, Unreachable):
        return None


def _is_a_strangers(kind: str, item: Manifest, uids: Collection[str], ours: Collection[str]) -> bool:
    metadata: Mapping[str, Any] = item["metadata"]
    if kind in _PASSING or (kind, metadata["name"]) in _ALWAYS_THERE or metadata["uid"] in ours:
        return False
    if metadata["name"].startswith(_MADE_BY_THE_SERVER) or _ACCOUNT in (metadata.get("annotations") or {}):
        return False
    return not any(owner["uid"] in uids for owner in metadata.get("ownerReferences") or ())


def of_definition(cluster: Cluster, definition: Manifest, ours: Collection[str]) -> list[str]:
    """Return the objects of a CustomResourceDefinition that are not ours, in words."""
    spec = definition["spec"]
    version = next(each["name"] for each in spec["versions"] if each.get("served"))
    try:
        items = cluster.ask(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}").get("items") or ()
    except NotFound:
        return []
    return sorted(_words(spec["names"]["kind"], item) for item in items if item["metadata"]["uid"] not in ours)


def _words(kind: str, item: Manifest) -> str:
    metadata = item["metadata"]
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{kind} {place}{metadata['name']}"
