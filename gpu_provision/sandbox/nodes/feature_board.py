"""Features handed from workers to the master inside this process, as Node Feature Discovery did over gRPC before 0.14.

For API servers that cannot store NodeFeature objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Object = dict[str, Any]
Change = Callable[[Object | None, Object | None], None]


class FeatureBoard:
    """Holds NodeFeatures; looks to the master like an informer that is in step already."""

    def __init__(self, node_of: Callable[[Object], tuple[str, ...]]) -> None:
        """``node_of`` returns the names of the nodes that a NodeFeature is about."""
        self._node_of = node_of
        self._features: dict[tuple[str, str], Object] = {}
        self._handlers: list[Change] = []

    def post(self, feature: Object) -> None:
        """Put up a NodeFeature in place of the one of the same name."""
        key = (feature["metadata"]["namespace"], feature["metadata"]["name"])
        before = self._features.get(key)
        self._features[key] = feature
        if before != feature:
            for handler in self._handlers:
                handler(before, feature)

    def on_change(self, handler: Change) -> None:
        """Call ``handler(before, after)`` for each change."""
        self._handlers.append(handler)

    def by(self, _: str, node: str) -> list[Object]:
        """Return the NodeFeatures of a node."""
        return [feature for feature in self._features.values() if node in self._node_of(feature)]
