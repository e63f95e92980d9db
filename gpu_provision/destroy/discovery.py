"""Read the objects of a stack by its labels, and foreign objects in its namespaces."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from gpu_provision.components import labels, nfd, validator
from gpu_provision.components.machine_config import MACHINE_CONFIG
from gpu_provision.components.targets import is_coreos, node_pools
from gpu_provision.destroy.nodes import StackIdentity, labelled_nodes, running_operator
from gpu_provision.destroy.plan import DestroyPlan, StackObjects, plan_destroy
from gpu_provision.history.store import history_ref
from gpu_provision.kube import lock, node_shell, observe
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.observe import CONFIG_MAP, NODE, POD, earlier_kinds, member_kinds, node_facts
from gpu_provision.kube.openshift import MACHINE_CONFIG_POOL, machine_pools
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model import codes
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, index_by_ref, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, InvalidError, Severity, UnreachableError
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.applyset import PART_OF, SET_ID, STACK, applyset_id, component_of
from gpu_provision.planning.managed_fields import other_managers

_PARALLEL = 12
_LEASE = Kind("coordination.k8s.io/v1", "Lease")
_GFD_FEATURES = "nvidia-features-for-"

# Objects that every namespace has.
_IN_EVERY_NAMESPACE = {
    *(("ConfigMap", name) for name in ("kube-root-ca.crt", "openshift-service-ca.crt")),
    *(("ServiceAccount", name) for name in ("builder", "default", "deployer")),
}
_TRANSIENT = frozenset({"Event", "Endpoints", "EndpointSlice"})  # deleted with the object that they are about
_COMPUTED = ("metrics.k8s.io",)  # groups without stored objects
_LIST_SECONDS = 30.0  # limits the delay by an API group without a server
_ACCOUNT = "kubernetes.io/service-account.name"  # annotation of token Secrets, which are deleted with the account


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyOptions:
    """Options of a removal."""

    crds: bool = False
    evict: bool = False  # whether to evict pods that use GPUs; without it they block the removal
    seconds: int = 300  # how long each stage may take


class ListableKind(NamedTuple):
    """A kind of namespaced object that can be listed."""

    group_version: str
    kind: str
    plural: str


def discover(
    cluster: KubeClient, inventory: Inventory, options: DestroyOptions, *, known: frozenset[str] = frozenset()
) -> DestroyPlan:
    """Read the objects of a stack, and plan its removal. Raises UnreachableError, ForbiddenError.

    ``known`` are uids of deleted objects of the stack, whose dependents may still exist.
    """
    found = _read_objects(cluster, inventory, crds=options.crds, known=known)
    facts = ClusterFacts(nodes=tuple(map(node_facts, found.nodes)))
    listed = {node.name: node.labels for node in inventory.nodes}
    stack = StackIdentity(
        name=inventory.name,
        declared={name: {**pool.labels, **listed.get(name, {})} for name, pool in node_pools(inventory, facts).items()},
        brings_nfd=any(ref.kind != "CustomResourceDefinition" and _is_nfd(item) for ref, item in found.members.items()),
        is_only_stack=not found.stacks,
        operator=running_operator(found.others),
    )
    plan = plan_destroy(found, stack, crds=options.crds)
    if any(change.component == "toolkit" and change.ref.kind == "DaemonSet" for change in plan.changes):
        reached = {node.name for node in filter(inventory.has_host_phase, inventory.nodes)}
        if nodes := set(labelled_nodes(found.nodes, inventory.name)) - reached:
            folder = f"{inventory.specs.toolkit.install_dir}/toolkit"
            coreos = (node for node in facts.nodes if is_coreos(node.os, node))
            warning = Finding(
                code=codes.PROGRAMS_KEPT,
                what=f"the container toolkit's programs stay in {folder}: the host phase, which removes them, is off",
                where=f"Node {', '.join(sorted(nodes))}",
                fix=_removal_of_programs(folder, on_coreos=any(each.name in nodes for each in coreos)),
                severity=Severity.WARNING,
            )
            plan = replace(plan, kept=(*plan.kept, warning))
    return plan


def _removal_of_programs(folder: str, *, on_coreos: bool) -> str:
    if on_coreos:
        return f"on each node, once no container uses them: oc debug node/NODE -- chroot /host rm -r {folder}"
    by_hand = f"on each node, once no container uses them: rm -r {folder}"
    return f"{by_hand}; or turn host_prerequisites on, and run gpu-provision destroy --hosts-only"


def _read_objects(cluster: KubeClient, inventory: Inventory, *, crds: bool, known: frozenset[str]) -> StackObjects:
    """Read the objects of a stack with one LIST for each kind, and foreign objects that a removal would delete."""
    home, set_id = inventory.cluster.namespace, applyset_id(inventory.name, inventory.cluster.namespace)
    with RequestPool(cluster, _PARALLEL) as pool:
        version = pool.submit(cluster.version)
        nodes = pool.submit(cluster.list, NODE)
        pods = pool.submit(cluster.list, POD)
        features = pool.submit(cluster.list, nfd.NODE_FEATURE)
        own = pool.submit(cluster.list, CONFIG_MAP, label_selector=f"{labels.MANAGED_BY}=gpu-provision")
        lease = pool.submit(cluster.get, lock.lock_ref(inventory))
        of_stack = member_kinds(inventory).union(*map(earlier_kinds, _own_parents(own.result().items, set_id)))
        lists = pool.map(lambda kind: cluster.list(kind, label_selector=f"{PART_OF}={set_id}").items, of_stack)
        members = index_by_ref(item for items in lists for item in items)
    pools = cluster.list(MACHINE_CONFIG_POOL).items if any(ref.type == MACHINE_CONFIG for ref in members) else ()
    namespaces = {ref.namespace for ref, item in members.items() if ref.namespace and _is_nfd(item)}
    masters = (cluster.get(ObjectRef(*_LEASE, each, nfd.MASTER_LEASE)) for each in sorted(namespaces))
    stack_pods = index_by_ref(pod for pod in pods.result().items if labels_of(pod).get(STACK) == inventory.name)
    others = [pod for pod in pods.result().items if ref_of(pod) not in stack_pods]
    generated = index_by_ref(
        pod for pod in others if pod["metadata"].get("namespace") == home and validator.runs_vector_add(pod)
    )
    without_ssh = {node.name for node in inventory.hosts_without_ssh}
    config_maps = own.result().items
    parents = [item["metadata"] for item in config_maps if SET_ID in item["metadata"]["labels"]]
    stacks = {f"{metadata['namespace']}/{metadata['name']}" for metadata in parents}
    objects = StackObjects(
        cluster=f"{cluster.name} ({version.result()})",
        members=members,
        records=index_by_ref(item for item in config_maps if _is_record(item, inventory)),
        lease=index_by_ref(filter(None, [lease.result()])),
        traces={
            **index_by_ref(filter(None, masters)),
            **index_by_ref(
                _published_features(features.result().items, nodes.result().items, {home, *namespaces}, members)
            ),
            **(generated if members else {}),
            **index_by_ref(pod for pod in others if _is_abandoned_helper(pod, without_ssh)),
        },
        pods=stack_pods,
        others=tuple(pod for pod in others if ref_of(pod) not in generated),
        claims=ResourceClaims(cluster).list_for_pods(others),
        nodes=tuple(nodes.result().items),
        machine_pools=machine_pools(pools, map(node_facts, nodes.result().items)),
        stacks=frozenset(stacks - {f"{home}/{inventory.name}"}),
    )
    uids, foreign = objects.uids | known, dict[ObjectRef, tuple[str, ...]]()
    may_go = {ref: item for ref, item in members.items() if not other_managers(item)}
    kinds = listable_kinds(cluster) if any(ref.kind == "Namespace" for ref in may_go) else []
    for ref, item in may_go.items():
        if ref.kind == "Namespace":
            foreign[ref] = tuple(foreign_objects_in(cluster, ref.name, kinds, uids))
        elif ref.kind == "CustomResourceDefinition" and crds:
            foreign[ref] = tuple(_foreign_objects_of(cluster, item, uids))
    return replace(objects, foreign=foreign)


def _own_parents(config_maps: Iterable[Manifest], set_id: str) -> Iterator[Manifest]:
    return (item for item in config_maps if item["metadata"]["labels"].get(SET_ID) == set_id)


def labels_of(item: Manifest) -> Mapping[str, str]:
    """Return the labels of an object."""
    return item["metadata"].get("labels") or {}


def _is_nfd(item: Manifest) -> bool:
    return component_of(item) == "nfd"


def _is_record(config_map: Manifest, inventory: Inventory) -> bool:
    """Whether a ConfigMap is the stack's ApplySet parent, its validations or its history."""
    metadata = config_map["metadata"]
    if metadata["namespace"] != inventory.cluster.namespace or PART_OF in metadata["labels"]:
        return False
    return metadata["name"] in {inventory.name, observe.validations_ref(inventory).name, history_ref(inventory).name}


def _is_abandoned_helper(pod: Manifest, nodes: Collection[str]) -> bool:
    """Whether a pod is a helper on one of these nodes without SSH, and its client is gone."""
    is_there = pod["spec"].get("nodeName") in nodes
    return is_there and labels.HELPER in labels_of(pod) and node_shell.is_orphaned(pod)


def _published_features(
    features: Iterable[Manifest],
    nodes: Iterable[Manifest],
    namespaces: Collection[str],
    members: Mapping[ObjectRef, Manifest],
) -> Iterator[Manifest]:
    """Yield the NodeFeatures of the stack's Node Feature Discovery and GPU Feature Discovery, by their names."""
    names = {node["metadata"]["name"] for node in nodes}
    for item in features if members else ():
        name, about = item["metadata"]["name"], labels_of(item).get(nfd.NODE_OF_FEATURE, "")
        if item["metadata"]["namespace"] in namespaces and (name.removeprefix(_GFD_FEATURES) == about or name in names):
            yield item


def listable_kinds(cluster: KubeClient) -> list[ListableKind]:
    """Return all namespaced kinds that the API server can list, in their preferred versions.

    Raises UnreachableError if the server of an aggregated API does not answer.
    """
    groups = cluster.get_path("/apis").get("groups", ())
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    with RequestPool(cluster, _PARALLEL) as pool:
        return [*chain.from_iterable(pool.map(lambda version: list(_kinds_of(cluster, version)), versions))]


def _kinds_of(cluster: KubeClient, version: str) -> Iterator[ListableKind]:
    if version.partition("/")[0].endswith(_COMPUTED):
        return
    resources = []
    with contextlib.suppress(NotFoundError):  # discovery still lists a group for a moment after its deletion
        resources = cluster.get_path(_api_path(version)).get("resources", ())
    for each in resources:
        if each["namespaced"] and "list" in each["verbs"] and "/" not in each["name"]:
            yield ListableKind(version, each["kind"], each["name"])


def _api_path(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def foreign_objects_in(
    cluster: KubeClient, namespace: str, kinds: Collection[ListableKind], own: Collection[str]
) -> list[str]:
    """Return the names of foreign objects in a namespace; ``own`` are the uids of the stack's objects.

    Dependents of objects of the namespace do not count. A kind that the account may not list counts.
    """
    with RequestPool(cluster, _PARALLEL) as pool:
        lists = dict(zip(kinds, pool.map(lambda kind: _list_kind(cluster, namespace, kind), kinds), strict=True))
    unknown = sorted(kind.plural for kind, items in lists.items() if items is None)
    there = [(kind.kind, item) for kind, items in lists.items() for item in items or ()]
    uids = {item["metadata"]["uid"] for _, item in there} | set(own)
    foreign = sorted({_object_name(kind, item) for kind, item in there if _is_foreign(kind, item, uids, own)})
    return [*foreign, *(f"{plural}, which the account may not list" for plural in unknown)]


def _list_kind(cluster: KubeClient, namespace: str, kind: ListableKind) -> list[Manifest] | None:
    path = f"{_api_path(kind.group_version)}/namespaces/{namespace}/{kind.plural}"
    try:
        return list(cluster.get_path(path, retry_seconds=_LIST_SECONDS).get("items") or ())
    except NotFoundError:
        return []
    except (ForbiddenError, InvalidError, UnreachableError):
        return None


def _is_foreign(kind: str, item: Manifest, uids: Collection[str], own: Collection[str]) -> bool:
    """Whether an object is foreign; OpenShift creates RoleBindings ``system:...`` in every namespace."""
    metadata = item["metadata"]
    if kind in _TRANSIENT or (kind, metadata["name"]) in _IN_EVERY_NAMESPACE or metadata["uid"] in own:
        return False
    if metadata["name"].startswith("system:") or _ACCOUNT in (metadata.get("annotations") or {}):
        return False
    return not any(owner["uid"] in uids for owner in metadata.get("ownerReferences") or ())


def _foreign_objects_of(cluster: KubeClient, definition: Manifest, own: Collection[str]) -> list[str]:
    """Return the names of a CustomResourceDefinition's foreign objects."""
    spec = definition["spec"]
    version = next(each["name"] for each in spec["versions"] if each.get("served"))
    try:
        items = cluster.get_path(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}").get("items") or ()
    except NotFoundError:
        return []
    return sorted(_object_name(spec["names"]["kind"], item) for item in items if item["metadata"]["uid"] not in own)


def _object_name(kind: str, item: Manifest) -> str:
    namespace = item["metadata"].get("namespace")
    return f"{kind} {f'{namespace}/' if namespace else ''}{item['metadata']['name']}"
