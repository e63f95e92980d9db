"""What a node's conditions mean for its taints, and which pods a taint drives away (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects, timestamps
from gpu_provision.sandbox.controllers.fitting import NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE_TAINT, tolerates
from gpu_provision.sandbox.controllers.objects import Condition

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"

_PRESSURES: Mapping[str, str] = MappingProxyType(
    {
        "MemoryPressure": "node.kubernetes.io/memory-pressure",
        "DiskPressure": "node.kubernetes.io/disk-pressure",
        "PIDPressure": "node.kubernetes.io/pid-pressure",
        "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
    }
)
_OF_READY: Mapping[str, tuple[str, ...]] = MappingProxyType({"False": (NOT_READY,), "Unknown": (UNREACHABLE,)})
_REPORTED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_MANAGED = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE_TAINT, *_PRESSURES.values()})
_SILENT = "Kubelet stopped posting node status."
_NEVER_HEARD = "Kubelet never posted node status."

Taint = Mapping[str, Any]


def conditions_of_silence(node: Object, moment: datetime) -> list[dict[str, Any]]:
    """Return the conditions of a node that has stopped reporting: all Unknown."""
    conditions: list[dict[str, Any]] = objects.status(node).get("conditions") or []
    for kind in _REPORTED:
        present = objects.condition(node, kind)
        if present is not None and present["status"] == "Unknown":
            continue
        wanted = (
            Condition(kind, "Unknown", "NodeStatusUnknown", _SILENT)
            if present
            else Condition(kind, "Unknown", "NodeStatusNeverUpdated", _NEVER_HEARD)
        )
        conditions = objects.with_condition(conditions, wanted, moment)
    return conditions


def _wanted(node: Object) -> list[tuple[str, str]]:
    ready = (objects.condition(node, "Ready") or {}).get("status", "")
    wanted = [(key, effect) for key in _OF_READY.get(ready, ()) for effect in (NO_SCHEDULE, NO_EXECUTE)]
    wanted += [(key, NO_SCHEDULE) for kind, key in _PRESSURES.items() if objects.has_condition(node, kind)]
    if (node.get("spec") or {}).get("unschedulable"):
        wanted.append((UNSCHEDULABLE_TAINT, NO_SCHEDULE))
    return wanted


def taints(node: Object, moment: datetime) -> list[dict[str, Any]]:
    """Return the node's taints as its conditions demand; taints of other keys are kept."""
    present: Sequence[dict[str, Any]] = (node.get("spec") or {}).get("taints") or []
    wanted = _wanted(node)
    kept = [one for one in present if one["key"] not in _MANAGED or (one["key"], one["effect"]) in wanted]
    known = {(one["key"], one["effect"]) for one in kept}
    added = [
        {
            "key": key,
            "effect": effect,
            **({} if key == UNSCHEDULABLE_TAINT else {"timeAdded": timestamps.text(moment)}),
        }
        for key, effect in wanted
        if (key, effect) not in known
    ]
    return [*kept, *added]


def driving(all_taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Return the taints that drive pods away."""
    return tuple(taint for taint in all_taints if taint["effect"] == NO_EXECUTE)


def seconds_left(pod: Object, all_taints: Iterable[Taint]) -> float | None:
    """Return how long the pod may stay from now on: 0 not at all, None for ever."""
    tolerations: Sequence[Mapping[str, Any]] = pod["spec"].get("tolerations") or ()
    shortest: float | None = None
    for taint in driving(all_taints):
        fitting = [one for one in tolerations if tolerates(one, taint)]
        if not fitting:
            return 0.0
        limits = [
            max(float(one["tolerationSeconds"]), 0.0) for one in fitting if one.get("tolerationSeconds") is not None
        ]
        if limits:
            shortest = min([*limits, *([] if shortest is None else [shortest])])
    return shortest
