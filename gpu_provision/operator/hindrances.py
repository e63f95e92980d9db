"""Why stacks may not be worked on: others were there first. Remembers what has not changed since it was read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpu_provision.cluster.facts import node_facts
from gpu_provision.components.targets import claims
from gpu_provision.model.cluster import ClusterFacts, Manifest, NodeFacts
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator.conditions import Halt, Reason
from gpu_provision.operator.overlaps import Claim, Overlap, overlaps
from gpu_provision.operator.stack import FINALIZER, home_of, inventory_of

_MOST_NAMED = 10


@dataclass(slots=True)
class Hindrances:
    """Judges all stacks of a cluster at once.

    A stack that is being removed still owns what it had: another one begins when it is gone.
    """

    _inventories: dict[tuple[str, int], Inventory | None] = field(default_factory=dict)
    _nodes: dict[str, tuple[str, NodeFacts]] = field(default_factory=dict)

    def look(self, stacks: Iterable[Manifest], nodes: Iterable[Manifest]) -> Mapping[str, Halt]:
        """Return why stacks may not be worked on, by name."""
        known = [stack for stack in stacks if _owns_something(stack)]
        facts = ClusterFacts(nodes=self._facts(nodes))
        self._inventories = {_version(stack): self._inventory(stack) for stack in known}
        wanted = filter(None, (_claim(stack, self._inventory(stack), facts) for stack in known))
        return {name: Halt(Reason.OVERLAP, _told(name, found)) for name, found in overlaps(wanted).items()}

    def _inventory(self, stack: Manifest) -> Inventory | None:
        version = _version(stack)
        return self._inventories[version] if version in self._inventories else inventory_of(stack)[0]

    def _facts(self, nodes: Iterable[Manifest]) -> tuple[NodeFacts, ...]:
        self._nodes = {node["metadata"]["name"]: self._fact(node["metadata"], node) for node in nodes}
        return tuple(facts for _, facts in self._nodes.values())

    def _fact(self, metadata: Mapping[str, str], node: Manifest) -> tuple[str, NodeFacts]:
        version, known = metadata["resourceVersion"], self._nodes.get(metadata["name"])
        return known if known and known[0] == version else (version, node_facts(node))


def _owns_something(stack: Manifest) -> bool:
    metadata = stack["metadata"]
    return not metadata.get("deletionTimestamp") or FINALIZER in (metadata.get("finalizers") or ())


def _version(stack: Manifest) -> tuple[str, int]:
    return str(stack["metadata"]["uid"]), int(stack["metadata"].get("generation", 0))


def _claim(stack: Manifest, inventory: Inventory | None, facts: ClusterFacts) -> Claim | None:
    if inventory is None:
        return None
    nodes = frozenset(name for name, pool in claims(inventory, facts).items() if pool.gpu)
    metadata = stack["metadata"]
    home = home_of(stack) or inventory.cluster.namespace
    return Claim(metadata["name"], metadata["creationTimestamp"], nodes, home)


def _told(name: str, found: Overlap) -> str:
    if found.nodes:
        return f"stack {found.owner} owns nodes that {name} wants, too: {_named(found.nodes)}"
    return f"stack {found.owner} owns the namespace {found.namespace}, which {name} wants, too: {_APART}"


_APART = "delete the younger stack, and make it anew with another spec.cluster.namespace"


def _named(nodes: Collection[str]) -> str:
    more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
    return f"{', '.join([*nodes][:_MOST_NAMED])}{more}"
