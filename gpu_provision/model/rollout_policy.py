"""How drivers are replaced: per pool, with the settings of the GPU Operator, and over the whole fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo

from gpu_provision.model.settings import setting

_MONTH = 30 * 24 * 3600
_MAX_NODES = 10_000
_UNMANAGED = "Whether pods without a controller are evicted."
_EMPTY_DIR = "Whether pods with emptyDir volumes are evicted; their data is lost."


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForCompletion:
    """Wait for jobs to complete before any pod is evicted."""

    pod_selector: str = setting(
        "", "Label selector of the pods that a node waits for. Default: no wait.", "label_selector"
    )
    timeout_seconds: int = setting(
        0, "Seconds after which jobs are evicted anyway. 0 means: never.", minimum=0, maximum=_MONTH
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDeletion:
    """How pods that use GPUs are evicted; PodDisruptionBudgets apply."""

    force: bool = setting(False, _UNMANAGED)
    timeout_seconds: int = setting(
        300,
        "Seconds to wait for a pod that cannot be evicted; then the upgrade of its node fails, or the node is "
        "drained. 0 means: no limit.",
        minimum=0,
        maximum=_MONTH,
    )
    delete_empty_dir: bool = setting(False, _EMPTY_DIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeDrain:
    """Drain of a node on which evicting GPU pods was not enough."""

    enable: bool = setting(False, "Whether all pods except those of DaemonSets are then drained.")
    force: bool = setting(False, _UNMANAGED)
    pod_selector: str = setting("", "Label selector of the pods that are drained. Default: all.", "label_selector")
    timeout_seconds: int = setting(300, "Seconds until the drain fails. 0 means: never.", minimum=0, maximum=_MONTH)
    delete_empty_dir: bool = setting(False, _EMPTY_DIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePolicy:
    """``driver.upgrade_policy``, with the names and defaults of the GPU Operator."""

    auto_upgrade: bool = setting(
        True,
        "Whether nodes with another driver than the declared one are upgraded. If off, nothing is evicted, and labels "
        "and annotations of a rollout are removed from the nodes.",
    )
    max_parallel_upgrades: int = setting(
        1,
        "Nodes that are upgraded at the same time. 0 means: as many as `max_unavailable` allows.",
        minimum=0,
        maximum=_MAX_NODES,
    )
    max_unavailable: int | str = setting(
        "25%",
        "Number or percentage (rounded up) of nodes that may be unavailable when an upgrade starts. Nodes that others "
        "cordoned and NotReady nodes count.",
        "percentage",
    )
    wait_for_completion: WaitForCompletion = setting(WaitForCompletion())
    pod_deletion: PodDeletion = setting(PodDeletion())
    drain: UpgradeDrain = setting(UpgradeDrain())


class OnFailure(StrEnum):
    """Reaction to too many failed nodes."""

    PAUSE = "pause"  # no further node starts; those under way are finished
    ROLLBACK = "rollback"  # all nodes get their previous driver again


class Order(StrEnum):
    """Order of the nodes."""

    NAME = "name"  # node-2 before node-10
    LISTED = "listed"  # as the inventory lists them
    IDLE_FIRST = "idle_first"  # the fewest GPU pods first


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """Nodes that are upgraded first. If one fails, no other node starts."""

    nodes: int = setting(
        1, "Number of canary nodes. 0 means: all that `node_selector` selects.", minimum=0, maximum=_MAX_NODES
    )
    node_selector: Mapping[str, str] = setting({}, "Labels of possible canary nodes. Default: all nodes.", "labels")
    soak_seconds: int = setting(
        0, "Seconds that the canaries have to stay ready before other nodes start.", minimum=0, maximum=_MONTH
    )


class Day(StrEnum):
    """Day of the week, in the order of ``date.weekday()``."""

    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceWindow:
    """When upgrades may start. Upgrades in progress also finish after the window."""

    days: tuple[Day, ...] = setting(
        tuple(Day), "Days on which the window opens.", minItems=1, uniqueItems=True, examples=[["sat", "sun"]]
    )
    start: str = setting("00:00", "Wall clock time at which the window opens.", "clock_time", required=True)
    minutes: int = setting(
        1440,
        "Minutes for which the window is open, at most a day.",
        required=True,
        minimum=1,
        maximum=1440,
        examples=[240],
    )
    timezone: str = setting(
        "UTC", "IANA name of the time zone of the wall clock.", minLength=1, maxLength=100, examples=["Europe/Berlin"]
    )

    @property
    def zone(self) -> tzinfo:
        """The time zone; see `zone_of`."""
        return zone_of(self.timezone)

    def is_open(self, now: float) -> bool:
        """Whether ``now``, in unix seconds, lies in the window."""
        length = timedelta(minutes=self.minutes).total_seconds()
        return any(0 <= now - opening < length for opening in self._openings(now))

    def next_opening(self, now: float) -> float:
        """Return when the window opens next, in unix seconds, after ``now``."""
        return min(opening for opening in self._openings(now) if opening > now)

    def _openings(self, now: float) -> Iterator[float]:
        """Yield the openings from the day before ``now`` to a week after it.

        The wall clock counts: a skipped hour of summer time opens the window as if it were not skipped, a repeated
        hour at its first occurrence.
        """
        hour, minute = (int(part) for part in self.start.split(":"))
        today = datetime.fromtimestamp(now, UTC).astimezone(self.zone).date()
        for offset in range(-2, 9):
            day = today + timedelta(days=offset)
            if tuple(Day)[day.weekday()] in self.days:
                yield datetime.combine(day, time(hour, minute), self.zone).timestamp()


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name; UTC works without a time zone database.

    Raises:
        ZoneInfoNotFoundError, ValueError, OSError: The machine has no zone of this name.
    """
    return UTC if name == "UTC" else ZoneInfo(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPolicy:
    """Policy of driver upgrades over all pools."""

    max_parallel_upgrades: int = setting(
        0,
        "Nodes of all pools that are upgraded at the same time. 0 means: no limit but those of the pools.",
        minimum=0,
        maximum=_MAX_NODES,
    )
    max_unavailable: int | str = setting(
        "100%",
        "Number or percentage (rounded up) of nodes of all pools that may be unavailable when an upgrade starts.",
        "percentage",
    )
    canary: Canary | None = setting(None)
    stop_after_failures: int = setting(
        1, "Number of failed nodes after which no further node starts.", minimum=1, maximum=_MAX_NODES
    )
    on_failure: OnFailure = setting(
        OnFailure.PAUSE,
        "What happens then: `pause` leaves the other nodes as they are; `rollback` restores the previous driver on all "
        "nodes.",
    )
    maintenance_window: MaintenanceWindow | None = setting(None)
    order: Order = setting(
        Order.NAME, "Order of the nodes: by name, as the inventory lists them, or with the fewest GPU pods first."
    )
