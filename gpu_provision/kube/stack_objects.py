"""Read what is left of a stack, by its labels, and the foreign objects in its namespaces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpu_provision.components import labels
from gpu_provision.destroy.discovery import Remains, is_generated
from gpu_provision.destroy.nodes import makers
from gpu_provision.kube import lock, node_shell, records
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.observe import MEMBER_KINDS, NODE, POD
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Refused, Rejected, Unreachable
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.applyset import (
    PART_OF,
    SET_ID,
    STACK,
    applyset_id,
    component_of,
)

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


class ApiResource(NamedTuple):
    """A kind of namespaced object that can be listed."""

    group_version: str
    kind: str
    plural: str


def list_api_resources(cluster: Cluster) -> list[ApiResource]:
    """Return everything namespaced that a server can list, each in the version that it prefers.

    Raises:
        Unreachable: A server behind an aggregated API does not answer: then what a namespace holds is unknown.
    """
    groups = cluster.ask("/apis").get("groups", ())
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    with RequestPool(cluster) as pool:
        return [each for found in pool.map(lambda version: list(_of(cluster, version)), versions) for each in found]


def _of(cluster: Cluster, version: str) -> Iterator[ApiResource]:
    if version.partition("/")[0].endswith(_COMPUTED):
        return
    try:
        found = cluster.ask(_prefix(version)).get("resources", ())
    except NotFoundError:
        return  # a definition that was deleted just now, whose group is named for a moment longer
    for each in found:
        if each["namespaced"] and "list" in each["verbs"] and "/" not in each["name"]:
            yield ApiResource(version, each["kind"], each["name"])


def _prefix(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def foreign_objects_in(
    cluster: Cluster, namespace: str, kinds: Collection[ApiResource], ours: Collection[str]
) -> list[str]:
    """Return what others have in a namespace, in words.

    What an object of the namespace owns goes with its owner and is not counted. A kind that we may not list counts:
    there may be something.

    Args:
        ours: Uids of objects that are ours.
    """
    with RequestPool(cluster) as pool:
        found = list(pool.map(lambda kind: _listed(cluster, namespace, kind), kinds))
    unknown = [kind.plural for kind, items in zip(kinds, found, strict=True) if items is None]
    there = [(kind.kind, item) for kind, items in zip(kinds, found, strict=True) for item in items or ()]
    uids = {item["metadata"]["uid"] for _, item in there} | set(ours)
    words = {_words(kind, item) for kind, item in there if _is_foreign(kind, item, uids, ours)}
    return [*sorted(words), *(f"{plural}, which we may not list" for plural in sorted(unknown))]


def _listed(cluster: Cluster, namespace: str, kind: ApiResource) -> list[Manifest] | None:
    path = f"{_prefix(kind.group_version)}/namespaces/{namespace}/{kind.plural}"
    try:
        return list(cluster.ask(path, retry_seconds=_LIST_SECONDS).get("items") or ())
    except NotFoundError:
        return []
    except (Refused, Rejected, Unreachable):
        return None


def _is_foreign(kind: str, item: Manifest, uids: Collection[str], ours: Collection[str]) -> bool:
    metadata: Mapping[str, Any] = item["metadata"]
    if kind in _PASSING or (kind, metadata["name"]) in _ALWAYS_THERE or metadata["uid"] in ours:
        return False
    if metadata["name"].startswith(_MADE_BY_THE_SERVER) or _ACCOUNT in (metadata.get("annotations") or {}):
        return False
    return not any(owner["uid"] in uids for owner in metadata.get("ownerReferences") or ())


def foreign_objects_of(cluster: Cluster, definition: Manifest, ours: Collection[str]) -> list[str]:
    """Return the objects of a CustomResourceDefinition that are not ours, in words."""
    spec = definition["spec"]
    version = next(each["name"] for each in spec["versions"] if each.get("served"))
    try:
        items = cluster.ask(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}").get("items") or ()
    except NotFoundError:
        return []
    return sorted(_words(spec["names"]["kind"], item) for item in items if item["metadata"]["uid"] not in ours)


def _words(kind: str, item: Manifest) -> str:
    metadata = item["metadata"]
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{kind} {place}{metadata['name']}"


_CONFIG_MAP, _LEASE = Kind("v1", "ConfigMap"), Kind("coordination.k8s.io/v1", "Lease")
FEATURE = Kind("nfd.k8s-sigs.io/v1alpha1", "NodeFeature")
_NFD_LOCK = "nfd-master.nfd.kubernetes.io"
_ABOUT_NODE = "nfd.node.kubernetes.io/node-name"
_HOLLOW = frozenset({"Namespace", "CustomResourceDefinition"})
_GFD_FEATURES = "nvidia-features-for-"


def read_stack_objects(
    cluster: Cluster, inventory: Inventory, *, crds: bool, known: frozenset[str] = frozenset()
) -> Remains:
    """Read a cluster: one LIST per kind, whatever the number of nodes.

    What others have in our namespaces and CustomResourceDefinitions is looked for where these would go.

    Args:
        crds: Whether CustomResourceDefinitions are to go.
        known: Uids of objects that were the stack's: what they owned is not others'.

    Raises:
        Unreachable, Refused: As the API server answers.
    """
    home, set_id = inventory.cluster.namespace, applyset_id(inventory.name, inventory.cluster.namespace)
    with RequestPool(cluster) as pool:
        version = pool.submit(cluster.version)
        nodes = pool.submit(cluster.list, NODE)
        pods = pool.submit(cluster.list, POD)
        features = pool.submit(cluster.list, FEATURE)
        own = pool.submit(cluster.list, _CONFIG_MAP, label_selector=f"{labels.MANAGED_BY}=gpu-provision")
        lease = pool.submit(cluster.get, lock.lock_ref(inventory))
        lists = pool.map(lambda kind: cluster.list(kind, label_selector=f"{PART_OF}={set_id}").items, MEMBER_KINDS)
        members = _by_ref(item for items in lists for item in items)
    namespaces = {ref.namespace for ref in members if ref.namespace and _is_nfd(members[ref])}
    nfd_locks = _by_ref(filter(None, (cluster.get(nfd_lock(namespace)) for namespace in sorted(namespaces))))
    ours, others = _sorted(pods.result().items, inventory)
    found = own.result().items
    remains = Remains(
        cluster=f"{cluster.name} ({version.result()})",
        members=members,
        records=_by_ref(item for item in found if _is_record(item, inventory)),
        lease=_by_ref(filter(None, [lease.result()])),
        traces={
            **nfd_locks,
            **_by_ref(_made_here(features.result().items, nodes.result().items, {home, *namespaces}, members)),
            **_by_ref(pod for pod in others if is_generated(pod, home) and members),
            **_by_ref(_abandoned_helpers(others, inventory)),
        },
        pods=ours,
        others=tuple(pod for pod in others if not is_generated(pod, home)),
        claims=ResourceClaims(cluster).of(others),
        nodes=tuple(nodes.result().items),
        stacks=frozenset(_stacks(found) - {f"{home}/{inventory.name}"}),
    )
    return _with_foreign_objects(cluster, remains, uids(remains) | known, crds=crds)


def _abandoned_helpers(pods: Iterable[Manifest], inventory: Inventory) -> Iterator[Manifest]:
    """Yield helper pods on the stack's hosts without SSH whose clients are dead; the others end with their clients."""
    nodes = {node.name for node in inventory.hosts_without_ssh}
    for pod in pods:
        is_helper = labels.HELPER in (pod["metadata"].get("labels") or {})
        if is_helper and pod["spec"].get("nodeName") in nodes and node_shell.is_orphaned(pod):
            yield pod


def _is_nfd(item: Manifest) -> bool:
    return component_of(item) == "nfd"


def nfd_lock(namespace: str) -> ObjectRef:
    """Return the Lease by which masters of Node Feature Discovery agree on one of them."""
    return ObjectRef(*_LEASE, namespace, _NFD_LOCK)


def _by_ref(items: Iterable[Manifest]) -> dict[ObjectRef, Manifest]:
    return {ref_of(item): item for item in items}


def _sorted(pods: Iterable[Manifest], inventory: Inventory) -> tuple[dict[ObjectRef, Manifest], list[Manifest]]:
    ours: dict[ObjectRef, Manifest] = {}
    others: list[Manifest] = []
    for pod in pods:
        if (pod["metadata"].get("labels") or {}).get(STACK) == inventory.name:
            ours[ref_of(pod)] = pod
        else:
            others.append(pod)
    return ours, others


def _is_record(item: Manifest, inventory: Inventory) -> bool:
    """Whether a ConfigMap is the stack's own: what stands for it, its validations, its history."""
    metadata = item["metadata"]
    if metadata["namespace"] != inventory.cluster.namespace or PART_OF in metadata["labels"]:
        return False
    own = {inventory.name, records.validations_ref(inventory).name, records.history_ref(inventory).name}
    return metadata["name"] in own


def _stacks(config_maps: Iterable[Manifest]) -> set[str]:
    """Return the stacks of this tool, each as namespace/name of the ConfigMap that stands for it."""
    return {
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in config_maps
        if SET_ID in item["metadata"]["labels"]
    }


def _made_here(
    features: Iterable[Manifest],
    nodes: Iterable[Manifest],
    namespaces: frozenset[str] | set[str],
    members: Mapping[ObjectRef, Manifest],
) -> Iterator[Manifest]:
    """Yield the NodeFeatures that our Node Feature Discovery and GPU Feature Discovery have made, by their names."""
    names = {node["metadata"]["name"] for node in nodes}
    for item in features if members else ():
        metadata = item["metadata"]
        about = (metadata.get("labels") or {}).get(_ABOUT_NODE, "")
        is_named_so = metadata["name"].removeprefix(_GFD_FEATURES) == about or metadata["name"] in names
        if metadata["namespace"] in namespaces and is_named_so:
            yield item


def _with_foreign_objects(cluster: Cluster, remains: Remains, ours: frozenset[str], *, crds: bool) -> Remains:
    """Look for what others have in those of our objects that hold objects."""
    hollow = [ref for ref, item in remains.members.items() if ref.kind in _HOLLOW and not makers(item)]
    kinds = list_api_resources(cluster) if any(ref.kind == "Namespace" for ref in hollow) else []
    found: dict[ObjectRef, tuple[str, ...]] = {}
    look: dict[str, Callable[[ObjectRef], list[str]]] = {
        "Namespace": lambda ref: foreign_objects_in(cluster, ref.name, kinds, ours),
    }
    if crds:
        look["CustomResourceDefinition"] = lambda ref: foreign_objects_of(cluster, remains.members[ref], ours)
    for ref in hollow:
        if ref.kind in look:
            found[ref] = tuple(look[ref.kind](ref))
    return replace(remains, strangers=found)


def uids(remains: Remains) -> frozenset[str]:
    """Return the uids of everything that is the stack's."""
    groups = (remains.members, remains.records, remains.lease, remains.traces, remains.pods)
    return frozenset(item["metadata"]["uid"] for group in groups for item in group.values())
