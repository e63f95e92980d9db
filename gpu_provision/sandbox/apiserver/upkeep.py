"""What the server does by itself after writes: followers of logs wake, old events go."""

from __future__ import annotations

from gpu_provision.sandbox.apiserver.item import Item
from gpu_provision.sandbox.apiserver.registry import Registry

EVENTS = "/events"
MOST_EVENTS, DROPPED_AT_ONCE = 5000, 500
"""A real cluster forgets events after an hour; a sandbox keeps the newest of them."""


def keep_up(registry: Registry) -> None:
    """Start the upkeep of a cluster."""
    store = registry.store

    def wake_followers(before: Item | None, after: Item | None) -> None:
        pod = after or before
        if pod is not None:
            store.logs.wake(pod.object["metadata"]["uid"])

    def drop_oldest(before: Item | None, after: Item | None) -> None:
        if before is not None or after is None or store.count(EVENTS) <= MOST_EVENTS:
            return
        for item in sorted(store.select(EVENTS), key=_version)[:DROPPED_AT_ONCE]:
            metadata = item.object["metadata"]
            store.remove(EVENTS, metadata["name"], metadata["namespace"])

    registry.on_change("/pods", wake_followers)
    registry.on_change(EVENTS, drop_oldest)


def _version(item: Item) -> int:
    return item.version
