"""The permissions that a run needs, from the inventory alone, and which of them are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from gpu_provision.components import nfd, prerequisites
from gpu_provision.kube.leases import lock_ref
from gpu_provision.kube.observe import (
    MEMBER_KINDS,
    NAMESPACE,
    NODE,
    POD,
    SERVICE_MONITORS,
    named_config_maps,
    named_secrets,
)
from gpu_provision.kube.resources import KINDS
from gpu_provision.kube.run_records import history_ref
from gpu_provision.kube.validation_records import record_ref
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, Permission, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import OperandSpec, Specs
from gpu_provision.planning.prepare import prepare, references
from gpu_provision.planning.rbac import permissions_of
from gpu_provision.reconcile.situation import run_scopes
from gpu_provision.rollout.budgets import evicts

_APPLY = ("get", "create", "patch")  # an apply is a patch; of an object that is not there yet, a create as well
_ROLES = frozenset({"Role", "ClusterRole"})
_PER_NODE = frozenset({"Node", "Pod"})
GPU_STACK = Kind("gpu-provision.io/v1alpha1", "GPUStack")
_NAMED_BY_NODES = frozenset({"DaemonSet"})  # its name can hold what only the cluster's nodes know, such as their system
_FACTS = ClusterFacts(resources=frozenset({SERVICE_MONITORS}))  # all that a component makes use of


def everything(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs for every command on this inventory, whatever the state of the cluster."""
    optional = (*to_see_claims(inventory), *to_find_references(inventory))
    return own(inventory) | passed_on(inventory) | frozenset(optional)


def own(inventory: Inventory) -> frozenset[Permission]:
    """Return what the tool itself makes use of."""
    applied = (one for item in _manifests(inventory) for one in _unnamed(to_apply(item), item))
    return frozenset(
        (
            *to_read(inventory, MEMBER_KINDS),
            *to_run(inventory),
            *_permissions(POD, "patch", namespace=inventory.cluster.namespace),
            *(one for one in applied if not _makes_namespace(one)),
            *to_prune(inventory),
            *to_reach_hosts(inventory),
            *to_reboot(inventory),
        )
    )


def passed_on(inventory: Inventory) -> frozenset[Permission]:
    """Return what the stack's own roles grant: an account has to hold it to write them."""
    return frozenset(one for item in _manifests(inventory) for one in to_grant(item))


def to_look(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs for ``status``, ``history`` and a ``plan`` without the server's word."""
    history = permissions(history_ref(inventory), "get")
    optional = (*to_see_claims(inventory), *to_find_references(inventory))
    return frozenset((*to_read(inventory, MEMBER_KINDS), *_to_read_logs(inventory), *history, *optional))


def to_read(inventory: Inventory, kinds: Iterable[Kind]) -> Iterator[Permission]:
    """Yield what one reading needs.

    Args:
        kinds: Those of the stack's objects. They are looked for in the whole cluster: members of an earlier
            inventory may be anywhere.
    """
    for kind in (NODE, POD, NAMESPACE, *kinds):
        yield from _permissions(kind, "list")
    home = inventory.cluster.namespace
    names = (inventory.name, record_ref(inventory).name, *sorted(named_config_maps(inventory)))
    for name in names:
        yield from permissions(ObjectRef("v1", "ConfigMap", home, name), "get")
    for name in sorted(named_secrets(inventory)):
        yield from permissions(ObjectRef("v1", "Secret", home, name), "get")
    yield from permissions(lock_ref(inventory), "get")
    yield from permissions(ObjectRef(*GPU_STACK, "", inventory.name), "get")
    yield from _to_foresee(inventory)


def _to_foresee(inventory: Inventory) -> Iterator[Permission]:
    """Yield what it takes to say whom the replacement of drivers will evict, besides nodes and pods."""
    if evicts(inventory):
        yield from _permissions(Kind("policy/v1", "PodDisruptionBudget"), "list")


def to_see_claims(inventory: Inventory) -> Iterator[Permission]:
    """Yield what tells which pods have GPUs by ResourceClaims. No run fails without: see docs/rollouts.md."""
    if evicts(inventory):
        yield _RESOURCE_CLAIMS


_RESOURCE_CLAIMS = Permission("list", "resource.k8s.io", "resourceclaims")


def to_find_references(inventory: Inventory) -> Iterator[Permission]:
    """Yield what it takes to see whether the ConfigMaps and Secrets exist that pods refer to. No run fails without."""
    for reference in references(prepare(inventory, _FACTS)[1]):
        yield from permissions(reference.ref, "get")


def to_run(inventory: Inventory) -> Iterator[Permission]:
    """Yield what a run that writes needs besides its objects: lock, records, watches, nodes, validations, causes."""
    yield from to_watch(inventory)
    yield from _to_lock(inventory)
    yield from permissions(record_ref(inventory), *_APPLY)
    yield from permissions(history_ref(inventory), *_APPLY)
    yield from _permissions(NODE, "patch")
    yield from _permissions(POD, "create", "delete", "deletecollection", namespace=inventory.cluster.namespace)
    yield from _to_read_logs(inventory)
    for namespace in _namespaces(inventory):
        yield from _permissions(Kind("v1", "Event"), "list", namespace=namespace)
    yield from _to_roll_out(inventory)


def to_watch(inventory: Inventory) -> Iterator[Permission]:
    """Yield what it takes to see how everything stands while it changes."""
    for scope in run_scopes(inventory):
        yield from _permissions(scope.kind, "list", "watch")


def _to_lock(inventory: Inventory) -> Iterator[Permission]:
    lock = lock_ref(inventory)
    yield from _permissions(lock.type, "create", namespace=lock.namespace)  # a POST, which names nothing
    yield from permissions(lock, "get", "update")


def _to_roll_out(inventory: Inventory) -> Iterator[Permission]:
    """Yield what replacing drivers needs: GPU work may be anywhere. Nothing where no driver is replaced by itself."""
    if not evicts(inventory):
        return
    yield from _permissions(POD, "list", "watch")
    yield Permission("create", "", "pods/eviction")
    yield from _permissions(Kind("policy/v1", "PodDisruptionBudget"), "list", "watch")


def _to_read_logs(inventory: Inventory) -> Iterator[Permission]:
    for namespace in _namespaces(inventory):
        yield Permission("get", "", "pods/log", namespace)


def to_reach_hosts(inventory: Inventory) -> Iterator[Permission]:
    """Yield what the shells of hosts without SSH need: helper pods, and processes in them.

    A websocket is a GET; servers of 1.35 and later ask for the right to create as well.
    """
    nodes, namespace = inventory.hosts_without_ssh, inventory.helper_pod.namespace
    for node in nodes:
        yield from _permissions(NODE, "get", name=node.name)
    if nodes:
        yield from _permissions(POD, "create", "delete", "get", namespace=namespace)
        yield from (Permission(verb, "", "pods/exec", namespace) for verb in ("create", "get"))


def to_reboot(inventory: Inventory) -> Iterator[Permission]:
    """Yield what cordons and drains around reboots need, under the lock; nothing where no machine may be rebooted."""
    if not inventory.may_reboot:
        return
    yield from _to_lock(inventory)
    yield from permissions(ObjectRef("v1", "Namespace", "", inventory.cluster.namespace), "get")
    yield from _permissions(NODE, "get", "list", "patch", "watch")
    yield from _permissions(POD, "list", "watch")
    yield Permission("create", "", "pods/eviction")


def _namespaces(inventory: Inventory) -> tuple[str, ...]:
    return prerequisites.spec(inventory).namespaces


def to_apply(manifest: Manifest) -> Iterator[Permission]:
    """Yield what applying an object needs; for nodes and validation pods see `to_run`."""
    if manifest["kind"] not in _PER_NODE:
        yield from permissions(ref_of(manifest), *_APPLY)


def to_grant(manifest: Manifest) -> Iterator[Permission]:
    """Yield what a role grants: whoever writes it, or binds it, has to hold that."""
    if manifest["kind"] in _ROLES:
        yield from permissions_of(manifest.get("rules", ()), manifest["metadata"].get("namespace", ""))


def to_prune(inventory: Inventory) -> Iterator[Permission]:
    """Yield what removing a component that is switched off needs.

    In the stack's namespaces that is any object of a kind that it has there; elsewhere those that some component can
    have under this inventory.
    """
    namespaces = frozenset(_namespaces(inventory))
    for ref in (*map(ref_of, _manifests(_with_everything_on(inventory))), *nfd.FORMER):
        if ref.kind in _PER_NODE or ref == ObjectRef("v1", "Namespace", "", inventory.cluster.namespace):
            continue
        if ref.namespace in namespaces:
            yield from _permissions(ref.type, "delete", namespace=ref.namespace)
        elif not ref.namespace:
            yield from permissions(ref, "delete")


def permissions(ref: ObjectRef, *verbs: str) -> Iterator[Permission]:
    """Yield permissions on one object."""
    yield from _permissions(ref.type, *verbs, namespace=ref.namespace, name=ref.name)


def _permissions(kind: Kind, *verbs: str, namespace: str = "", name: str = "") -> Iterator[Permission]:
    group = kind.api_version.rpartition("/")[0]
    for verb in verbs:
        yield Permission(verb, group, KINDS[kind], namespace, name)


def _unnamed(found: Iterable[Permission], manifest: Manifest) -> Iterator[Permission]:
    for one in found:
        yield one._replace(name="") if manifest["kind"] in _NAMED_BY_NODES else one


def _makes_namespace(one: Permission) -> bool:
    """Whoever grants the rights makes the namespaces, which the Roles need."""
    return (one.verb, one.group, one.resource) == ("create", "", "namespaces")


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
