"""The cells of a pod's row. The order of the rules is that of Kubernetes' printer, since people know its words."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.cells import NONE, since
from gpu_provision.sandbox.apiserver.objects import at


def _always(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def _sidecars(pod: Object) -> set[str]:
    return {row["name"] for row in at(pod, "spec", "initContainers") or () if _always(row)}


def _statuses(pod: Object, part: str) -> list[Object]:
    return at(pod, "status", part) or []


def _initializing(pod: Object) -> str:
    """Return what the first unfinished init container is doing; empty if all are done."""
    sidecars, total = _sidecars(pod), len(at(pod, "spec", "initContainers") or ())
    for index, row in enumerate(_statuses(pod, "initContainerStatuses")):
        ended, waiting = at(row, "state", "terminated"), at(row, "state", "waiting") or {}
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if row.get("name") in sidecars and row.get("started"):
            continue
        if ended is not None:
            return f"Init:{_ended(ended)}"
        if waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{total}"
    return ""


def _ended(state: Object) -> str:
    if state.get("reason"):
        return str(state["reason"])
    return f"Signal:{state['signal']}" if state.get("signal") else f"ExitCode:{state.get('exitCode', 0)}"


def _running(pod: Object, reason: str) -> str:
    has_running = False
    for row in reversed(_statuses(pod, "containerStatuses")):
        waiting, ended = at(row, "state", "waiting") or {}, at(row, "state", "terminated")
        if waiting.get("reason"):
            reason = str(waiting["reason"])
        elif ended is not None:
            reason = _ended(ended)
        elif row.get("ready") and at(row, "state", "running") is not None:
            has_running = True
    if reason == "Completed" and has_running:
        return "Running" if _is_ready(pod) else "NotReady"
    return reason


def _is_ready(pod: Object) -> bool:
    return any(row.get("type") == "Ready" and row.get("status") == "True" for row in _statuses(pod, "conditions"))


def _gated(pod: Object) -> bool:
    return any(
        row.get("type") == "PodScheduled" and row.get("reason") == "SchedulingGated"
        for row in _statuses(pod, "conditions")
    )


def status(pod: Object) -> str:
    """Return the STATUS column: Init:0/1, ContainerCreating, CrashLoopBackOff, Terminating ..."""
    phase = str(at(pod, "status", "phase") or "")
    reason = str(at(pod, "status", "reason") or "") or phase
    if _gated(pod):
        reason = "SchedulingGated"
    text = _initializing(pod) or _running(pod, reason)
    if pod["metadata"].get("deletionTimestamp"):
        if at(pod, "status", "reason") == "NodeLost":
            return "Unknown"
        return text if phase in ("Succeeded", "Failed") else "Terminating"
    return text


def _counted(pod: Object) -> list[Object]:
    """Return the statuses of the containers that run as long as the pod does."""
    sidecars = _sidecars(pod)
    inits = [row for row in _statuses(pod, "initContainerStatuses") if row.get("name") in sidecars]
    return [*inits, *_statuses(pod, "containerStatuses")]


def ready(pod: Object) -> str:
    """Return the READY column: ``1/2``."""
    total = len(at(pod, "spec", "containers") or ()) + len(_sidecars(pod))
    done = sum(1 for row in _counted(pod) if row.get("ready") and at(row, "state", "running") is not None)
    return f"{done}/{total}"


def restarts(pod: Object) -> Any:
    """Return the RESTARTS column: a number, or ``3 (5m ago)``."""
    rows = _statuses(pod, "initContainerStatuses") if _initializing(pod) else _counted(pod)
    count = sum(row.get("restartCount") or 0 for row in rows)
    times = [time for row in rows if (time := at(row, "lastState", "terminated", "finishedAt"))]
    return f"{count} ({since(max(times))} ago)" if count and times else str(count)


def address(pod: Object) -> str:
    """Return the pod's IP."""
    return at(pod, "status", "podIP") or NONE


def gates(pod: Object) -> str:
    """Return the READINESS GATES column."""
    wanted = [row["conditionType"] for row in at(pod, "spec", "readinessGates") or ()]
    if not wanted:
        return NONE
    true = {row["type"] for row in _statuses(pod, "conditions") if row.get("status") == "True"}
    return f"{sum(1 for kind in wanted if kind in true)}/{len(wanted)}"
