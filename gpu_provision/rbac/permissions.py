"""The permissions that each command needs, derived from the inventory alone. Pure.

The tables say what a step asks of the API server, whatever the objects of the inventory are; the functions add those
objects, and name what each command needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

from gpu_provision.components import nfd, prerequisites
from gpu_provision.history.store import history_ref
from gpu_provision.kube.lock import lock_ref
from gpu_provision.kube.observe import MEMBER_KINDS, SERVICE_MONITORS, named_config_maps, named_secrets
from gpu_provision.kube.records import validations_ref
from gpu_provision.kube.resources import KINDS
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, Permission, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change
from gpu_provision.model.specs import OperandSpec, Specs
from gpu_provision.planning.prepare import prepare, references
from gpu_provision.rbac.roles import permissions_of

# Where a row holds: in the whole cluster, in the namespace of the operands, in each namespace of the stack, in that of
# helper pods, in that of Node Feature Discovery.
CLUSTER, OPERANDS, STACK, HELPERS, NFD = "cluster", "operands", "stack", "helpers", "nfd"


class Allow(NamedTuple):
    """A row: verbs on resources, where, and on which object alone; ``{stack}`` and the like name it."""

    verbs: str
    resources: str
    where: str = CLUSTER
    name: str = ""


_LEASES, _BUDGETS = "leases.coordination.k8s.io", "poddisruptionbudgets.policy"
_GPU_STACKS, _FEATURES = "gpustacks.gpu-provision.io", "nodefeatures.nfd.k8s-sigs.io"

_READ = (
    Allow("list", "nodes pods namespaces"),
    Allow("get", "configmaps", OPERANDS, "{stack}"),
    Allow("get", "configmaps", OPERANDS, "{validations}"),
    Allow("get", _LEASES, OPERANDS, "{lock}"),
    Allow("get", _GPU_STACKS, name="{stack}"),
)
_HISTORY = (Allow("get", "configmaps", OPERANDS, "{history}"),)
_PREVIEW = (Allow("list", _BUDGETS),)  # which pods the replacement of drivers will evict
_CLAIMS = (Allow("list", "resourceclaims.resource.k8s.io"),)  # optional: which pods have GPUs by ResourceClaims
_LOGS = (Allow("get", "pods/log", STACK),)
_WATCH = (
    Allow("list watch", "nodes pods daemonsets.apps deployments.apps customresourcedefinitions.apiextensions.k8s.io"),
)
_LOCK = (Allow("create", _LEASES, OPERANDS), Allow("get update", _LEASES, OPERANDS, "{lock}"))  # a POST names nothing
_RUN = (
    *_WATCH,
    *_LOCK,
    *_LOGS,
    Allow("get create patch", "configmaps", OPERANDS, "{validations}"),
    Allow("get create patch", "configmaps", OPERANDS, "{history}"),
    Allow("patch", "nodes"),
    Allow("create delete deletecollection", "pods", OPERANDS),
    Allow("list", "events", STACK),
)
_EVICT = (Allow("create", "pods/eviction"),)  # GPU work may be in any namespace
_ROLLOUT = (Allow("list watch", f"pods {_BUDGETS}"), *_EVICT)
_PATCH_PODS = (Allow("patch", "pods", OPERANDS),)
_REBOOT = (
    *_LOCK,
    *_EVICT,
    Allow("get", "namespaces", name="{operands}"),
    Allow("get list patch watch", "nodes"),
    Allow("list watch", "pods"),
)
# A websocket is a GET; servers of 1.35 and later ask for the right to create as well.
_HOST_SHELLS = (Allow("create delete get", "pods", HELPERS), Allow("create get", "pods/exec", HELPERS))

_DESTROY_WRITES = (
    *_LOCK,
    Allow("delete", _LEASES, OPERANDS, "{lock}"),
    Allow("get patch watch", "nodes"),
    Allow("watch", "pods"),
    Allow("get", "namespaces", name="{operands}"),
)
_DESTROY = (
    *_READ,
    *_DESTROY_WRITES,
    *_EVICT,
    Allow("list", f"{_FEATURES} {_BUDGETS}"),
    Allow("delete", f"pods {_FEATURES}", STACK),
    Allow("get delete", _LEASES, STACK, nfd.MASTER_LEASE),
)

_ADOPTED = "configmaps serviceaccounts services daemonsets.apps deployments.apps"
_ADOPTED_ROLES = "roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io"
_ADOPTED_MONITORS = "servicemonitors.monitoring.coreos.com"
_ADOPTED_OF_CLUSTER = (
    "clusterroles.rbac.authorization.k8s.io clusterrolebindings.rbac.authorization.k8s.io runtimeclasses.node.k8s.io"
)
# Objects of the operator are taken over or deleted. The chart's release is in their names, so no row has names.
_ADOPT = (
    Allow("list get patch delete", "clusterpolicies.nvidia.com"),
    Allow("list", "nvidiadrivers.nvidia.com daemonsets.apps deployments.apps"),
    Allow("list watch", _FEATURES, NFD),
    Allow("patch delete", "pods", OPERANDS),
    Allow("list delete", "controllerrevisions.apps", OPERANDS),
    Allow("get patch delete", f"{_ADOPTED} {_ADOPTED_ROLES} {_ADOPTED_MONITORS}", OPERANDS),
    Allow("get patch delete", _ADOPTED_OF_CLUSTER),
)

_APPLY = ("get", "create", "patch")  # an apply is a patch; of an object that is not there yet, a create as well
_ROLES = frozenset({"Role", "ClusterRole"})
_PER_NODE = frozenset({"Node", "Pod"})
_NAMED_BY_NODES = frozenset({"DaemonSet"})  # its name can hold what only the cluster's nodes know, such as their system
_SHARED = frozenset({"namespaces", "runtimeclasses", "customresourcedefinitions"})  # others may have part in these
_FACTS = ClusterFacts(resources=frozenset({SERVICE_MONITORS}))  # all that a component makes use of


def for_apply(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs for every command but adopt and destroy, whatever the state of the cluster."""
    return for_own_requests(inventory) | granted_by_stack(inventory) | frozenset(_optional(inventory))


def for_own_requests(inventory: Inventory) -> frozenset[Permission]:
    """Return what the tool itself makes use of."""
    applied = (
        one._replace(name="") if item["kind"] in _NAMED_BY_NODES else one
        for item in _manifests(inventory)
        for one in for_object(item)
    )
    # An administrator makes the namespaces, as the Roles need them.
    return frozenset(
        (
            *for_read(inventory, MEMBER_KINDS),
            *for_run(inventory),
            *_rows(inventory, _PATCH_PODS),
            *(one for one in applied if (one.verb, one.resource) != ("create", "namespaces")),
            *_for_prune(inventory),
            *_for_host_shells(inventory),
            *for_reboots(inventory),
        )
    )


def granted_by_stack(inventory: Inventory) -> frozenset[Permission]:
    """Return what the stack's own roles grant: an account has to hold it to write them."""
    return frozenset(one for item in _manifests(inventory) for one in granted_by_role(item))


def for_view(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs for ``status``, ``history`` and a ``plan`` without the server's dry run."""
    rows = _rows(inventory, (*_LOGS, *_HISTORY))
    return frozenset((*for_read(inventory, MEMBER_KINDS), *rows, *_optional(inventory)))


def for_destroy(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs to remove a stack, whatever is left of it.

    Namespaces are not among what may be deleted: an administrator, who gives these rights, makes them; so they stay.
    """
    pruned = frozenset(_for_prune(inventory))
    shared = {one for one in pruned if one.resource in _SHARED}
    return frozenset(
        (
            *for_read(inventory, MEMBER_KINDS),
            *_rows(inventory, _DESTROY),
            *_for_claims(inventory),
            *_for_host_shells(inventory),
            *(one for one in pruned if one.resource != "namespaces"),
            *(one._replace(verb=verb) for one in shared for verb in ("get", "patch")),
            *(Permission("patch", "", "namespaces", name=name) for name in _namespaces(inventory, STACK)),
        )
    )


def for_destroy_plan(inventory: Inventory, changes: Iterable[Change], *, evict: bool) -> Iterator[Permission]:
    """Yield what a removal needs for what it found."""
    yield from _rows(inventory, (*_DESTROY_WRITES, *(_EVICT if evict else ())))
    for change in changes:
        if change.action is Action.DELETE or change.ref.kind != "Node":
            yield from on_object(change.ref, "delete" if change.action is Action.DELETE else "patch")


def for_adopt(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs to take a cluster over: all that an apply needs, and more."""
    return for_apply(inventory) | beyond_apply(inventory)


def beyond_apply(inventory: Inventory) -> frozenset[Permission]:
    """Return what an adoption needs besides what an apply needs."""
    return frozenset(_rows(inventory, _ADOPT))


def for_read(inventory: Inventory, kinds: Iterable[Kind]) -> Iterator[Permission]:
    """Yield what one reading needs.

    Args:
        kinds: Those of the stack's objects. They are looked for in the whole cluster: members of an earlier
            inventory may be anywhere.
    """
    yield from (one for kind in kinds for one in _on_kind(kind, "list"))
    yield from _rows(inventory, (*_READ, *(_PREVIEW if inventory.evicts else ())))
    named = (("ConfigMap", named_config_maps(inventory)), ("Secret", named_secrets(inventory)))
    for kind, names in named:
        for name in sorted(names):
            yield from on_object(ObjectRef("v1", kind, inventory.cluster.namespace, name), "get")


def for_run(inventory: Inventory) -> Iterator[Permission]:
    """Yield what a run that writes needs besides its objects: lock, records, watches, nodes, validations, causes.

    Where drivers are replaced by the tool, also what a rollout needs.
    """
    yield from _rows(inventory, (*_RUN, *(_ROLLOUT if inventory.evicts else ())))


def for_watches(inventory: Inventory) -> Iterator[Permission]:
    """Yield what it takes to see how everything stands while it changes."""
    yield from _rows(inventory, _WATCH)


def for_reboots(inventory: Inventory) -> Iterator[Permission]:
    """Yield what cordons and drains around reboots need, under the lock; nothing where no machine may be rebooted."""
    yield from _rows(inventory, _REBOOT if inventory.may_reboot else ())


def for_object(manifest: Manifest) -> Iterator[Permission]:
    """Yield what applying an object needs; for nodes and validation pods see `for_run`."""
    if manifest["kind"] not in _PER_NODE:
        yield from on_object(ref_of(manifest), *_APPLY)


def granted_by_role(manifest: Manifest) -> Iterator[Permission]:
    """Yield what a role grants: an account that writes or binds it has to hold that."""
    if manifest["kind"] in _ROLES:
        yield from permissions_of(manifest.get("rules", ()), manifest["metadata"].get("namespace", ""))


def on_object(ref: ObjectRef, *verbs: str) -> Iterator[Permission]:
    """Yield permissions on one object."""
    yield from _on_kind(ref.type, *verbs, namespace=ref.namespace, name=ref.name)


def _on_kind(kind: Kind, *verbs: str, namespace: str = "", name: str = "") -> Iterator[Permission]:
    group = kind.api_version.rpartition("/")[0]
    for verb in verbs:
        yield Permission(verb, group, KINDS[kind], namespace, name)


def _rows(inventory: Inventory, rows: Iterable[Allow]) -> Iterator[Permission]:
    names = {
        "stack": inventory.name,
        "operands": inventory.cluster.namespace,
        "lock": lock_ref(inventory).name,
        "history": history_ref(inventory).name,
        "validations": validations_ref(inventory).name,
    }
    for row in rows:
        for namespace in _namespaces(inventory, row.where):
            for resource, _, group in (each.partition(".") for each in row.resources.split()):
                for verb in row.verbs.split():
                    yield Permission(verb, group, resource, namespace, row.name.format(**names))


def _namespaces(inventory: Inventory, where: str) -> tuple[str, ...]:
    spaces = {
        CLUSTER: ("",),
        OPERANDS: (inventory.cluster.namespace,),
        STACK: prerequisites.namespaces(inventory),
        HELPERS: (inventory.helper_pod.namespace,),
        NFD: (inventory.specs.nfd.namespace,),
    }
    return spaces[where]


def _optional(inventory: Inventory) -> Iterator[Permission]:
    """Yield what no run fails without: ResourceClaims, and whether the objects exist that pods refer to."""
    yield from _for_claims(inventory)
    for reference in references(prepare(inventory, _FACTS)[1]):
        yield from on_object(reference.ref, "get")


def _for_claims(inventory: Inventory) -> Iterator[Permission]:
    yield from _rows(inventory, _CLAIMS if inventory.evicts else ())


def _for_host_shells(inventory: Inventory) -> Iterator[Permission]:
    """Yield what the shells of hosts without SSH need: helper pods, and processes in them."""
    nodes = inventory.hosts_without_ssh
    yield from _rows(
        inventory, (*(Allow("get", "nodes", name=node.name) for node in nodes), *(_HOST_SHELLS if nodes else ()))
    )


def _for_prune(inventory: Inventory) -> Iterator[Permission]:
    """Yield what removing a component that is switched off needs.

    In the stack's namespaces that is any object of a kind that it has there; elsewhere those that some component can
    have under this inventory.
    """
    namespaces = frozenset(_namespaces(inventory, STACK))
    for ref in (*map(ref_of, _manifests(_with_everything_on(inventory))), *nfd.FORMER):
        if ref.kind in _PER_NODE or ref == ObjectRef("v1", "Namespace", "", inventory.cluster.namespace):
            continue
        if ref.namespace in namespaces:
            yield from _on_kind(ref.type, "delete", namespace=ref.namespace)
        elif not ref.namespace:
            yield from on_object(ref, "delete")


def _manifests(inventory: Inventory) -> list[Manifest]:
    _, desired = prepare(inventory, _FACTS)
    return [manifest for manifests in desired.values() for manifest in manifests]


def _with_everything_on(inventory: Inventory) -> Inventory:
    specs = inventory.specs
    found: dict[str, Any] = {field.name: getattr(specs, field.name) for field in fields(Specs)}
    on: dict[str, Any] = {
        name: replace(spec, enabled=True) for name, spec in found.items() if isinstance(spec, OperandSpec)
    }
    on["device_plugin"] = replace(on["device_plugin"], config_name=specs.device_plugin.config_name or "any")
    return replace(inventory, specs=replace(specs, cdi_enabled=True, **on))
