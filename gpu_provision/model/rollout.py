"""The replacement of drivers in advance, as a value: plans carry it, views print it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A pod in the way of a driver.

    Attributes:
        owner: Its controller as ``Kind name``; empty if nothing would start it again.
        use: How it is known that it uses GPUs: ``requests GPUs``; empty if it does not.
        certain: False if it may be gone by itself before it is evicted, or is evicted only if something else fails.
        returns: Whether its successor may come to the same node, as it tolerates cordons, and keep the driver.
        budgets: The PodDisruptionBudgets that allow no disruption right now.
        slowed_by: Those that allow some, but fewer at a time than are to go in the same wave.
    """

    namespace: str
    name: str
    owner: str = ""
    use: str = ""
    certain: bool = True
    returns: bool = False
    budgets: tuple[str, ...] = ()
    slowed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the upgrade means for one node.

    Attributes:
        why: Why its driver is replaced, or goes.
        leaves: Whether the node left the inventory, so that nothing takes the driver's place.
        waits_for: Jobs that may end by themselves first.
        evicts: Pods that are evicted, those of a drain that may follow among them.
        stays: Pods that stay although they may use the driver.
        cordoned_by: Whose cordon was there before and stays; empty if there was none.
    """

    node: str
    why: str
    leaves: bool = False
    waits_for: tuple[Leaving, ...] = ()
    evicts: tuple[Leaving, ...] = ()
    stays: tuple[Leaving, ...] = ()
    cordoned_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Nodes that are upgraded at the same time; the next wave follows node by node as these are done.

    Attributes:
        not_before: Unix seconds of the maintenance window or of the end of a soak time; None for at once.
        is_canary: Whether everything after it depends on how they do.
    """

    nodes: tuple[Outlook, ...]
    not_before: float | None = None
    is_canary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A rollout in advance, if nothing fails.

    Attributes:
        under_way: Nodes that an earlier run left in the middle; they are finished first.
        skipped: Node and why its driver is not replaced.
        marked: Nodes that keep their driver, and whose label and annotations of upgrades are written or removed.
        stop_after: So many failed nodes, and no further one starts.
    """

    under_way: tuple[str, ...] = ()
    waves: tuple[Wave, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    marked: tuple[str, ...] = ()
    stop_after: int = 1

    @property
    def nodes(self) -> tuple[Outlook, ...]:
        """All nodes of all waves, in order."""
        return tuple(outlook for wave in self.waves for outlook in wave.nodes)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do on any node."""
        return not (self.under_way or self.waves or self.skipped or self.marked)
