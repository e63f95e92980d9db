"""The part of an inventory that a run looks after."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Components and nodes; what is not in it is neither changed, nor removed, nor validated.

    Attributes:
        components: Empty for all. What they require is among them.
        nodes: Empty for all.
    """

    components: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return not (self.components or self.nodes)

    def has_component(self, name: str) -> bool:
        """Whether a component is in it."""
        return not self.components or name in self.components

    def has_node(self, name: str) -> bool:
        """Whether a node is in it."""
        return not self.nodes or name in self.nodes

    def has(self, component: str, node: str) -> bool:
        """Whether a component is in it on a node."""
        return self.has_component(component) and self.has_node(node)


ALL = Part()
