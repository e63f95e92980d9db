"""Reads what is left of a stack, and what its removal would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpu_provision.cluster import remains
from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.facts import node_facts
from gpu_provision.components.targets import claims
from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.membership import component_of
from gpu_provision.removal import telling
from gpu_provision.removal.nodes import Stack
from gpu_provision.removal.plan import Removal, removal, takes_gpus
from gpu_provision.removal.remains import Remains
from gpu_provision.removal.users import marked, operator_of, users


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
    found = remains.read(cluster, inventory, crds=terms.crds, known=known)
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
        yield telling.programs_kept(nodes, f"{inventory.specs.toolkit.install_dir}/toolkit")


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
