"""How drivers are replaced: per pool, with the settings of the GPU Operator, and over the whole fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo

from gpu_provision.model.settings import setting

_MONTH = 30 * 24 * 3600
_MOST_NODES = 10_000
_UNMANAGED = "Whether pods go that no controller would start again."
_EMPTY_DIR = "Whether pods with emptyDir volumes go; their data is lost."


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForCompletion:
    """Pods that may end by themselves before any is evicted."""

    pod_selector: str = setting(
        "", "Label selector of pods whose end a node waits for. None: it does not wait.", "label_selector"
    )
    timeout_seconds: int = setting(
        0, "Seconds after which jobs are evicted all the same. 0 means: never.", minimum=0, maximum=_MONTH
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDeletion:
    """How pods that use GPUs are evicted; PodDisruptionBudgets are obeyed."""

    force: bool = setting(False, _UNMANAGED)
    timeout_seconds: int = setting(
        300,
        "Seconds until a pod that cannot be evicted makes the upgrade of its node fail, or have it drained. 0 means: "
        "never.",
        minimum=0,
        maximum=_MONTH,
    )
    delete_empty_dir: bool = setting(False, _EMPTY_DIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeDrain:
    """What is done where evicting GPU pods was not enough."""

    enable: bool = setting(False, "Whether the node is then drained of all pods but those of DaemonSets.")
    force: bool = setting(False, _UNMANAGED)
    pod_selector: str = setting("", "Label selector of the pods that are drained. None: all.", "label_selector")
    timeout_seconds: int = setting(
        300, "Seconds until the drain has failed. 0 means: never.", minimum=0, maximum=_MONTH
    )
    delete_empty_dir: bool = setting(False, _EMPTY_DIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePolicy:
    """``driver.upgrade_policy``, with the names and defaults of the GPU Operator."""

    auto_upgrade: bool = setting(
        True,
        "Whether nodes with another driver than the declared one are upgraded. Off: nothing is evicted, and what a "
        "rollout wrote on the nodes is taken back.",
    )
    max_parallel_upgrades: int = setting(
        1,
        "Nodes that are upgraded at the same time. 0 means: as many as `max_unavailable` allows.",
        minimum=0,
        maximum=_MOST_NODES,
    )
    max_unavailable: int | str = setting(
        "25%",
        "How many nodes may be unavailable for an upgrade to start: a number, or a percentage rounded up. Nodes that "
        "others cordoned and nodes that are NotReady count.",
        "percentage",
    )
    wait_for_completion: WaitForCompletion = setting(WaitForCompletion())
    pod_deletion: PodDeletion = setting(PodDeletion())
    drain: UpgradeDrain = setting(UpgradeDrain())


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
    """Nodes that are upgraded first, alone. If one fails, no other node is touched."""

    nodes: int = setting(1, "How many. 0 means: all that `node_selector` selects.", minimum=0, maximum=_MOST_NODES)
    node_selector: Mapping[str, str] = setting({}, "Labels of the nodes to choose from. None: all nodes.", "labels")
    soak_seconds: int = setting(
        0, "Seconds that they have to stay well before any other node starts.", minimum=0, maximum=_MONTH
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
    """When nodes may start. Those under way are finished also afterwards."""

    days: tuple[Day, ...] = setting(
        tuple(Day), "Days on which the window opens.", minItems=1, uniqueItems=True, examples=[["sat", "sun"]]
    )
    start: str = setting("00:00", "Wall clock time at which it opens.", "clock_time", required=True)
    minutes: int = setting(
        1440, "Minutes for which it is open, at most a day.", required=True, minimum=1, maximum=1440, examples=[240]
    )
    timezone: str = setting(
        "UTC", "IANA name of the time zone of the wall clock.", minLength=1, maxLength=100, examples=["Europe/Berlin"]
    )

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
    """What holds for upgrades of the driver over all pools."""

    max_parallel_upgrades: int = setting(
        0,
        "Nodes of all pools that are upgraded at the same time. 0 means: no limit but those of the pools.",
        minimum=0,
        maximum=_MOST_NODES,
    )
    max_unavailable: int | str = setting(
        "100%",
        "How many nodes of all pools may be unavailable for an upgrade to start: a number, or a percentage rounded up.",
        "percentage",
    )
    canary: Canary | None = setting(None)
    stop_after_failures: int = setting(
        1, "With so many failed nodes no further one starts.", minimum=1, maximum=_MOST_NODES
    )
    on_failure: OnFailure = setting(
        OnFailure.PAUSE,
        "What comes then: the others keep what they have, or all nodes go back to the driver version that they had.",
    )
    maintenance_window: MaintenanceWindow | None = setting(None)
    order: Order = setting(
        Order.NAME, "Which node is next: by name, as the inventory lists them, or those with the fewest GPU pods."
    )
