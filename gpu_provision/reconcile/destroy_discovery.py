"""Read what is left of a stack, what its removal would do, and which rights it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpu_provision.components import prerequisites
from gpu_provision.components.targets import claims
from gpu_provision.destroy import findings
from gpu_provision.destroy.discovery import Remains, marked, operator_of, users
from gpu_provision.destroy.nodes import Stack
from gpu_provision.destroy.plan import KINDS as SHARED
from gpu_provision.destroy.plan import Removal, removal, takes_gpus
from gpu_provision.kube import stack_objects
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.lock import lock_ref
from gpu_provision.kube.observe import MEMBER_KINDS, NAMESPACE, NODE, POD, node_facts
from gpu_provision.kube.resources import KINDS
from gpu_provision.kube.stack_objects import FEATURE, nfd_lock
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, Permission
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change
from gpu_provision.planning.applyset import component_of
from gpu_provision.reconcile import permissions


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a removal may do.

    Attributes:
        crds: Whether CustomResourceDefinitions go, too.
        evict: Whether pods that use GPUs are evicted; without it they forbid the removal.
        seconds: How long each stage may take.
    """

    crds: bool = False
    evict: bool = False
    seconds: int = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """One reading, and what follows from it."""

    remains: Remains
    stack: Stack
    plan: Removal

    @property
    def users(self) -> dict[str, tuple[Manifest, ...]]:
        """Pods of others that would lose their GPUs, by node."""
        nodes = marked(self.remains.nodes, self.stack.name)
        return users(self.remains.others, nodes, self.remains.claims) if takes_gpus(self.plan) else {}


def look(cluster: Cluster, inventory: Inventory, terms: Terms, *, known: frozenset[str] = frozenset()) -> Looked:
    """Read what is left of a stack.

    Args:
        known: Uids of objects that were the stack's: what they owned may still be there.

    Raises:
        Unreachable, Refused: As the API server answers.
    """
    found = stack_objects.read_stack_objects(cluster, inventory, crds=terms.crds, known=known)
    stack = _stack(inventory, found)
    plan = removal(found, stack, crds=terms.crds)
    kept = (*plan.kept, *_programs_kept(inventory, found, plan))
    return Looked(remains=found, stack=stack, plan=replace(plan, kept=kept))


def _programs_kept(inventory: Inventory, found: Remains, plan: Removal) -> Iterator[Finding]:
    """Yield the warning about what the toolkit's containers leave on hosts that the host phase leaves alone."""
    if not any(change.component == "toolkit" and change.ref.kind == "DaemonSet" for change in plan.changes):
        return
    reached = {node.name for node in inventory.nodes if inventory.prerequisites_of(node).enabled}
    if nodes := set(marked(found.nodes, inventory.name)) - reached:
        yield findings.programs_kept(nodes, f"{inventory.specs.toolkit.install_dir}/toolkit")


def _stack(inventory: Inventory, found: Remains) -> Stack:
    facts = ClusterFacts(nodes=tuple(map(node_facts, found.nodes)))
    listed = {node.name: node.labels for node in inventory.nodes}
    declared = {name: {**pool.labels, **listed.get(name, {})} for name, pool in claims(inventory, facts).items()}
    witnesses = (item for ref, item in found.members.items() if ref.kind != "CustomResourceDefinition")
    return Stack(
        name=inventory.name,
        declared=declared,
        brings_nfd=any(component_of(item) == "nfd" for item in witnesses),
        is_alone=not found.stacks,
        operator=operator_of(found.others),
    )


def to_carry_out(inventory: Inventory, changes: tuple[Change, ...], *, evict: bool) -> Iterator[Permission]:
    """Yield what a removal needs for what it found."""
    yield from _always(inventory)
    for change in changes:
        if change.action is Action.DELETE:
            yield from permissions.permissions(change.ref, "delete")
        elif change.ref.kind != "Node":
            yield from permissions.permissions(change.ref, "patch")
    if evict:
        yield _EVICTIONS


_EVICTIONS = Permission("create", "", "pods/eviction")


def everything(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs to remove a stack, whatever is left of it.

    Namespaces are not among what may be deleted: whoever gives these rights has made them, so that they stay.
    """
    namespaces = prerequisites.spec(inventory).namespaces
    shared = {one for one in permissions.to_prune(inventory) if one.resource in _SHARED}
    return frozenset(
        (
            *permissions.to_read(inventory, MEMBER_KINDS),
            *_of(FEATURE, "list"),
            *permissions.to_see_claims(inventory),
            *permissions.to_reach_hosts(inventory),
            *_always(inventory),
            *(one for one in permissions.to_prune(inventory) if one.resource != KINDS[NAMESPACE]),
            *(one._replace(verb=verb) for one in shared for verb in ("get", "patch")),
            *(one for namespace in namespaces for one in _of(NAMESPACE, "patch", name=namespace)),
            *(
                one
                for namespace in namespaces
                for kind in (POD, FEATURE)
                for one in _of(kind, "delete", space=namespace)
            ),
            *(one for namespace in namespaces for one in permissions.permissions(nfd_lock(namespace), "delete", "get")),
            _EVICTIONS,
            *_of(Kind("policy/v1", "PodDisruptionBudget"), "list"),
        )
    )


_SHARED = frozenset(plural for kind, plural in KINDS.items() if kind.kind in SHARED)


def _always(inventory: Inventory) -> Iterator[Permission]:
    """Yield what every removal that writes needs: lock, watches, nodes."""
    lock = lock_ref(inventory)
    yield from _of(lock.type, "create", space=lock.namespace)  # a POST, which names nothing
    yield from permissions.permissions(lock, "get", "update", "delete")
    yield from _of(NODE, "get", "patch", "watch")
    yield from _of(POD, "watch")
    yield from _of(NAMESPACE, "get", name=inventory.cluster.namespace)


def _of(kind: Kind, *verbs: str, space: str = "", name: str = "") -> Iterator[Permission]:
    group = kind.api_version.rpartition("/")[0]
    yield from (Permission(verb, group, KINDS[kind], space, name) for verb in verbs)
