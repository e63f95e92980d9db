"""The permissions that each command needs: what permissions.yaml says of its steps, and the inventory's objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from importlib import resources
from itertools import product
from typing import Any

import yaml

from gpu_provision.components import machine_config, nfd, prerequisites
from gpu_provision.components.machine_config import MACHINE_CONFIG
from gpu_provision.components.monitoring import PROMETHEUS_RULES, SERVICE_MONITORS
from gpu_provision.history.store import history_ref
from gpu_provision.kube.client import KINDS
from gpu_provision.kube.lock import lock_ref
from gpu_provision.kube.observe import member_kinds, named_config_maps, named_secrets, validations_ref
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, Permission, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.openshift_specs import OPENSHIFT
from gpu_provision.model.operand_specs import OperandSpec
from gpu_provision.model.plan import Action, Change
from gpu_provision.model.specs import Specs
from gpu_provision.planning.prepare import find_references, prepare
from gpu_provision.rbac.roles import permissions_of

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times faster; not every wheel has it
_TEXT = resources.files(__package__).joinpath("permissions.yaml").read_text(encoding="utf-8")
_TABLES: dict[str, list[dict[str, str]]] = yaml.load(_TEXT, Loader=_LOADER)  # noqa: S506 - a safe loader
_APPLY = ("get", "create", "patch")  # an apply is a patch; of an object that is not there yet, a create as well
_ROLES = frozenset({"Role", "ClusterRole"})
_PER_NODE = frozenset({"Node", "Pod"})
# Their names hold what only the cluster's nodes know, such as their system or their MachineConfigPool.
_NAMED_BY_NODES = frozenset({"DaemonSet", "MachineConfig"})
_SHARED = frozenset({"namespaces", "runtimeclasses", "customresourcedefinitions"})  # others may have part in these
_MONITORS = (SERVICE_MONITORS, PROMETHEUS_RULES, "podmonitors.monitoring.coreos.com")
_FACTS = ClusterFacts(resources=frozenset(_MONITORS))  # all that a component makes use of


def for_apply(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs for every command but adopt and destroy, whatever the state of the cluster."""
    return for_own_requests(inventory) | stack_permissions(inventory) | frozenset(_optional_permissions(inventory))


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
            *for_read(inventory, member_kinds(inventory)),
            *for_run(inventory),
            *_rows(inventory, "patch_pods"),
            *(one for one in applied if (one.verb, one.resource) != ("create", "namespaces")),
            *_for_prune(inventory),
            *_for_host_shells(inventory),
            *for_reboots(inventory),
        )
    )


def stack_permissions(inventory: Inventory) -> frozenset[Permission]:
    """Return what the stack's own roles grant: an account has to hold it to write them."""
    return frozenset(one for item in _manifests(inventory) for one in role_permissions(item))


def for_view(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs for ``status``, ``history`` and a ``plan`` without the server's dry run."""
    rows = _rows(inventory, "logs", "history")
    return frozenset((*for_read(inventory, member_kinds(inventory)), *rows, *_optional_permissions(inventory)))


def for_destroy(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs to remove a stack, whatever is left of it.

    Namespaces are not among what may be deleted: an administrator, who gives these rights, makes them; so they stay.
    """
    pruned = frozenset(_for_prune(inventory))
    shared = {one for one in pruned if one.resource in _SHARED}
    return frozenset(
        (
            *for_read(inventory, member_kinds(inventory)),
            *_rows(
                inventory, "destroy", "destroy_writes", "lock", "evict", *(["claims"] if inventory.may_evict else ())
            ),
            *_for_host_shells(inventory),
            *(one for one in pruned if one.resource != "namespaces"),
            *(one._replace(verb=verb) for one in shared for verb in ("get", "patch")),
            *(Permission("patch", "", "namespaces", name=name) for name in _namespaces(inventory, "stack")),
        )
    )


def for_destroy_plan(inventory: Inventory, changes: Iterable[Change], *, evict: bool) -> Iterator[Permission]:
    """Yield what a removal needs for what it found."""
    yield from _rows(inventory, "destroy_writes", "lock", *(["evict"] if evict else ()))
    for change in changes:
        if change.action is Action.DELETE or change.ref.kind != "Node":
            yield from object_permissions(change.ref, "delete" if change.action is Action.DELETE else "patch")


def for_adopt(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs to take a cluster over."""
    return for_apply(inventory) | additional_for_adopt(inventory)


def additional_for_adopt(inventory: Inventory) -> frozenset[Permission]:
    """Return what an adoption needs besides what an apply needs."""
    on_openshift = ["adopt_openshift"] if inventory.cluster.platform == OPENSHIFT else []
    return frozenset(_rows(inventory, "adopt", *on_openshift))


def for_read(inventory: Inventory, kinds: Iterable[Kind]) -> Iterator[Permission]:
    """Yield what one reading needs; objects of the kinds are looked for everywhere, as earlier inventories had them."""
    yield from (one for kind in kinds for one in _on_kind(kind, "list"))
    on_openshift = ["openshift"] if inventory.cluster.platform == OPENSHIFT else []
    on_openshift += ["machine_configs"] if _rolls_machines(inventory) else []
    yield from _rows(inventory, "read", *(["preview"] if inventory.may_evict else ()), *on_openshift)
    named = (("ConfigMap", named_config_maps(inventory)), ("Secret", named_secrets(inventory)))
    for kind, names in named:
        for name in sorted(names):
            yield from object_permissions(ObjectRef("v1", kind, inventory.cluster.namespace, name), "get")


def for_run(inventory: Inventory) -> Iterator[Permission]:
    """Yield what a run, also with a rollout, needs besides its objects: lock, records, watches, nodes, causes."""
    yield from for_watches(inventory)
    yield from _rows(inventory, "run", "lock", "logs", *(["rollout", "evict"] if inventory.may_evict else ()))


def for_watches(inventory: Inventory) -> Iterator[Permission]:
    """Yield what it takes to see how everything stands while it changes."""
    yield from _rows(inventory, "watch", *(["watch_machines"] if _rolls_machines(inventory) else ()))


def _rolls_machines(inventory: Inventory) -> bool:
    """Whether the stack has MachineConfigs, as far as the inventory says."""
    return inventory.cluster.platform == OPENSHIFT and machine_config.has_machine_configs(inventory)


def for_followed_platform(inventory: Inventory) -> Iterator[Permission]:
    """Yield what it takes to see what changes on OpenShift between two runs."""
    yield from _rows(inventory, *(["openshift_follow"] if inventory.cluster.platform == OPENSHIFT else ()))


def for_reboots(inventory: Inventory) -> Iterator[Permission]:
    """Yield what cordons and drains around reboots need, under the lock; nothing where no machine may be rebooted."""
    yield from _rows(inventory, *(["reboot", "lock", "evict"] if inventory.rebootable_nodes else ()))


def for_object(manifest: Manifest) -> Iterator[Permission]:
    """Yield what applying an object needs; for nodes and validation pods see `for_run`."""
    if manifest["kind"] not in _PER_NODE:
        yield from object_permissions(ref_of(manifest), *_APPLY)


def role_permissions(manifest: Manifest) -> Iterator[Permission]:
    """Yield what a role grants: an account that writes or binds it has to hold that."""
    if manifest["kind"] in _ROLES:
        yield from permissions_of(manifest.get("rules", ()), manifest["metadata"].get("namespace", ""))


def object_permissions(ref: ObjectRef, *verbs: str) -> Iterator[Permission]:
    """Yield permissions on one object."""
    yield from _on_kind(ref.type, *verbs, namespace=ref.namespace, name=ref.name)


def _on_kind(kind: Kind, *verbs: str, namespace: str = "", name: str = "") -> Iterator[Permission]:
    group = kind.api_version.rpartition("/")[0]
    for verb in verbs:
        yield Permission(verb, group, KINDS[kind], namespace, name)


def _rows(inventory: Inventory, *tables: str) -> Iterator[Permission]:
    names = {
        "stack": inventory.name,
        "operands": inventory.cluster.namespace,
        "lock": lock_ref(inventory).name,
        "history": history_ref(inventory).name,
        "validations": validations_ref(inventory).name,
        "nfd_master": nfd.MASTER_LEASE,
    }
    for row in (row for table in tables for row in _TABLES[table]):
        places = _namespaces(inventory, row["where"]) if "where" in row else ("",)
        for namespace, qualified, verb in product(places, row["resources"].split(), row["verbs"].split()):
            resource, _, group = qualified.partition(".")
            yield Permission(verb, group, resource, namespace, row.get("name", "").format(**names))


def _namespaces(inventory: Inventory, where: str) -> tuple[str, ...]:
    spaces = {
        "operands": (inventory.cluster.namespace,),
        "stack": prerequisites.namespaces(inventory),
        "helpers": (inventory.helper_pod.namespace,),
        "nfd": (inventory.specs.nfd.namespace,),
    }
    return spaces[where]


def _optional_permissions(inventory: Inventory) -> Iterator[Permission]:
    """Yield what no run fails without: ResourceClaims, and whether the objects exist that pods refer to."""
    yield from _rows(inventory, *(["claims"] if inventory.may_evict else ()))
    for reference in find_references(prepare(inventory, _FACTS)[1]):
        yield from object_permissions(reference.ref, "get")


def _for_host_shells(inventory: Inventory) -> Iterator[Permission]:
    """Yield what the shells of hosts without SSH need: helper pods, and processes in them."""
    for node in inventory.hosts_without_ssh:
        yield Permission("get", "", "nodes", "", node.name)
    yield from _rows(inventory, *(["host_shells"] if inventory.hosts_without_ssh else ()))


def _for_prune(inventory: Inventory) -> Iterator[Permission]:
    """Yield what removing a component that is switched off needs: in the stack's namespaces any object of its kinds."""
    namespaces = frozenset(_namespaces(inventory, "stack"))
    for ref in (*map(ref_of, _manifests(_enable_all_components(inventory))), *nfd.FORMER):
        if ref.kind in _PER_NODE or ref == ObjectRef("v1", "Namespace", "", inventory.cluster.namespace):
            continue
        if ref.namespace in namespaces:
            yield from _on_kind(ref.type, "delete", namespace=ref.namespace)
        elif not (ref.namespace or ref.kind in _NAMED_BY_NODES):
            yield from object_permissions(ref, "delete")
    if inventory.cluster.platform == OPENSHIFT:  # its MachineConfigs, also of MachineConfigPools that are gone
        yield from _on_kind(MACHINE_CONFIG, "delete")


def _manifests(inventory: Inventory) -> list[Manifest]:
    _, desired = prepare(inventory, _FACTS)
    return [manifest for manifests in desired.values() for manifest in manifests]


def _enable_all_components(inventory: Inventory) -> Inventory:
    specs = inventory.specs
    found: dict[str, Any] = {field.name: getattr(specs, field.name) for field in fields(Specs)}
    on: dict[str, Any] = {
        name: replace(spec, enabled=True) for name, spec in found.items() if isinstance(spec, OperandSpec)
    }
    on["dcgm_exporter"] = replace(
        on["dcgm_exporter"],
        prometheus_rule=replace(specs.dcgm_exporter.prometheus_rule, enabled=True),
        dashboard=replace(specs.dcgm_exporter.dashboard, enabled=True),
    )
    on["device_plugin"] = replace(on["device_plugin"], config_name=specs.device_plugin.config_map or "any")
    return replace(inventory, specs=replace(specs, cdi_enabled=True, **on))
