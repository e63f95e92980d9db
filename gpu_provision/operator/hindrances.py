"""Why stacks may not be worked on: others were there first. Remembers what has not changed since it was read.

A stack that cannot be judged for a mistake in gpu-provision is not worked on, and hinders no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpu_provision.cluster.facts import node_facts
from gpu_provision.components.targets import claims
from gpu_provision.model.cluster import ClusterFacts, Manifest, NodeFacts
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator.conditions import Halt, Reason, mistake
from gpu_provision.operator.notes import Take, of_mistake
from gpu_provision.operator.overlaps import Claim, Overlap, overlaps
from gpu_provision.operator.stack import FINALIZER, home_of, inventory_of

_MOST_NAMED = 10


@dataclass(slots=True)
class Hindrances:
    """Judges all stacks of a cluster at once.

    A stack that is being removed still owns what it had: another one begins when it is gone.

    Attributes:
        take: Receives the traceback of a mistake, once.
    """

    take: Take
    _inventories: dict[tuple[str, int], Inventory | None] = field(default_factory=dict)
    _nodes: dict[str, tuple[str, NodeFacts]] = field(default_factory=dict)
    _mistakes: dict[str, Halt] = field(default_factory=dict)

    def look(self, stacks: Iterable[Manifest], nodes: Iterable[Manifest]) -> Mapping[str, Halt]:
        """Return why stacks may not be worked on, by name."""
        facts = ClusterFacts(nodes=self._facts(nodes))
        known, self._inventories = self._inventories, {}
        wanted: list[Claim] = []
        mistakes: dict[str, Halt] = {}
        for stack in stacks:
            try:
                wanted += self._claims(stack, known, facts)
            except Exception as error:  # noqa: BLE001 - a mistake about one stack is none about the others
                mistakes[stack["metadata"]["name"]] = self._mistake(stack["metadata"]["name"], error)
        self._mistakes = mistakes
        found = {name: Halt(Reason.OVERLAP, _told(name, overlap)) for name, overlap in overlaps(wanted).items()}
        return found | mistakes

    def _claims(
        self, stack: Manifest, known: Mapping[tuple[str, int], Inventory | None], facts: ClusterFacts
    ) -> list[Claim]:
        if not _owns_something(stack):
            return []
        version = _version(stack)
        inventory = known[version] if version in known else inventory_of(stack)[0]
        self._inventories[version] = inventory
        return [_claim(stack, inventory, facts)] if inventory else []

    def _mistake(self, name: str, error: Exception) -> Halt:
        halt = mistake(error)
        if self._mistakes.get(name) != halt:
            self.take(of_mistake(error, name))
        return halt

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


def _claim(stack: Manifest, inventory: Inventory, facts: ClusterFacts) -> Claim:
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
