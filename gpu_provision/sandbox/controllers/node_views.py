"""Follows nodes and tells only of changes that matter for placing pods."""

from __future__ import annotations

from collections.abc import Callable

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.fitting import NodeView, view_of
from gpu_provision.sandbox.informer import Informer

ViewChange = Callable[[NodeView | None, NodeView | None], None]


class NodeViews:
    """Node name -> view of the node, kept up to date.

    Attributes:
        views: Read-only for users.
    """

    def __init__(self, nodes: Informer) -> None:
        """Follow the informer of nodes."""
        self.views: dict[str, NodeView] = {}
        self._handlers: list[ViewChange] = []
        nodes.on_change(self._changed)

    def on_change(self, handler: ViewChange) -> None:
        """Call ``handler(before, after)``; known nodes are reported at once."""
        self._handlers.append(handler)
        for view in tuple(self.views.values()):
            handler(None, view)

    def _changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            before = self.views.pop(objects.name(old), None) if old else None
            self._tell(before, None)
            return
        view = view_of(new)
        before = self.views.get(view.name)
        if view.says(before):
            return
        self.views[view.name] = view
        self._tell(before, view)

    def _tell(self, before: NodeView | None, after: NodeView | None) -> None:
        for handler in self._handlers:
            handler(before, after)
