"""How drivers are replaced, as an inventory declares it: per pool as in the GPU Operator, and for the whole fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForCompletion:
    """Which pods a node waits for before any is evicted; no selector: none. Zero seconds: without limit."""

    pod_selector: str = ""
    timeout_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDeletion:
    """How pods that use GPUs are evicted. Zero seconds: without limit.

    Attributes:
        force: Whether pods without a controller go too, although nothing starts them again.
        delete_empty_dir: Whether pods with emptyDir volumes go too, although their data is lost.
    """

    force: bool = False
    timeout_seconds: int = 300
    delete_empty_dir: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeDrain:
    """Whether and how a node is drained of all pods where evicting those with GPUs was not enough."""

    enable: bool = False
    force: bool = False
    pod_selector: str = ""
    timeout_seconds: int = 300
    delete_empty_dir: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePolicy:
    """``driver.upgrade_policy``, with the names and defaults of the GPU Operator.

    Attributes:
        max_parallel_upgrades: Nodes at the same time; zero means: as many as ``max_unavailable`` allows.
        max_unavailable: A number of nodes, or a percentage of them, rounded up.
    """

    auto_upgrade: bool = True
    max_parallel_upgrades: int = 1
    max_unavailable: int | str = "25%"
    wait_for_completion: WaitForCompletion = field(default_factory=WaitForCompletion)
    pod_deletion: PodDeletion = field(default_factory=PodDeletion)
    drain: UpgradeDrain = field(default_factory=UpgradeDrain)


class OnFailure(StrEnum):
    """What comes after too many nodes have failed."""

    PAUSE = "pause"  # no further node starts; those under way are finished
    ROLLBACK = "rollback"  # the fleet goes back to the content that it had before


class Order(StrEnum):
    """Which node is next."""

    NAME = "name"  # node-2 before node-10
    LISTED = "listed"  # as the inventory lists them
    IDLE_FIRST = "idle_first"  # the fewest GPU pods first


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The nodes that go first, alone.

    Attributes:
        nodes: How many; zero with a selector means: all that it selects.
        node_selector: Labels of the nodes to choose from; empty for all.
        soak_seconds: How long they have to stay well before any other node starts.
    """

    nodes: int = 1
    node_selector: Mapping[str, str] = field(default_factory=dict)
    soak_seconds: int = 0


class Day(StrEnum):
    """A day of the week, in the order of ``date.weekday()``."""

    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceWindow:
    """When nodes may start; those under way are finished also afterwards.

    Attributes:
        days: Days on which a window opens.
        start: Wall clock time at which it opens, ``HH:MM``.
        minutes: How long it is open, at most a day.
        timezone: IANA name.
    """

    days: tuple[Day, ...] = tuple(Day)
    start: str = "00:00"
    minutes: int = 1440
    timezone: str = "UTC"

    @property
    def zone(self) -> tzinfo:
        """The time zone; see `zone_of`."""
        return zone_of(self.timezone)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name; UTC also on a machine that knows no other, such as a small image.

    Raises:
        ZoneInfoNotFoundError, ValueError, OSError: This machine knows none of that name.
    """
    return UTC if name == "UTC" else ZoneInfo(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPolicy:
    """``rollout``: what holds over all pools, which the GPU Operator has no notion of.

    Attributes:
        max_parallel_upgrades: Nodes of all pools at the same time; zero for no limit beyond those of the pools.
        max_unavailable: Nodes of all pools, or a percentage of them, rounded up.
        canary: None for no canary.
        stop_after_failures: So many failed nodes, and no further one starts.
    """

    max_parallel_upgrades: int = 0
    max_unavailable: int | str = "100%"
    canary: Canary | None = None
    stop_after_failures: int = 1
    on_failure: OnFailure = OnFailure.PAUSE
    maintenance_window: MaintenanceWindow | None = None
    order: Order = Order.NAME
