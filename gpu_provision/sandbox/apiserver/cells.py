"""Texts in the cells of tables, as kubectl's users know them; those of pods in the order of Kubernetes' rules."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import at, moment

NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_SHOWN = 3


def human_duration(seconds: float) -> str:
    """Return a duration the short way: ``45s``, ``5m12s``, ``3h5m``, ``2d3h``, ``400d``, ``3y12d``."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    minutes, hours, days = total // _MINUTE, total // _HOUR, total // _DAY
    steps = (  # the first bound, in seconds, that the duration stays below; the bounds are those of Kubernetes
        (2 * _MINUTE, f"{max(total, 0)}s"),
        (10 * _MINUTE, _two(minutes, "m", total % 60, "s")),
        (3 * _HOUR, f"{minutes}m"),
        (8 * _HOUR, _two(hours, "h", minutes % 60, "m")),
        (48 * _HOUR, f"{hours}h"),
        (8 * _DAY, _two(days, "d", hours % 24, "h")),
        (2 * 365 * _DAY, f"{days}d"),
        (8 * 365 * _DAY, _two(days // 365, "y", days % 365, "d")),
    )
    return next((text for bound, text in steps if total < bound), f"{days // 365}y")


def _two(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large}{unit}{small}{small_unit}" if small else f"{large}{unit}"


def since(text: Any) -> str:
    """Return how long ago a timestamp was."""
    then = moment(text) if text else None
    if then is None:
        return UNKNOWN
    return human_duration((dt.datetime.now(dt.UTC) - then).total_seconds())


def age(obj: Object) -> str:
    """Return how old an object is."""
    return since(obj["metadata"].get("creationTimestamp"))


def joined(values: Iterable[Any], empty: str = NONE) -> str:
    """Return values with commas."""
    return ",".join(str(value) for value in values) or empty


def labels_text(labels: Mapping[str, Any] | None) -> str:
    """Return a map of labels as text."""
    return joined(f"{key}={value}" for key, value in sorted((labels or {}).items()))


def selector_text(selector: Any) -> str:
    """Return a label selector, or a plain map of labels, as text."""
    if not isinstance(selector, dict) or not ({"matchLabels", "matchExpressions"} & set(selector)):
        return labels_text(selector)
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for row in selector.get("matchExpressions") or ():
        key, operator, values = row["key"], row["operator"], ",".join(sorted(row.get("values") or ()))
        texts = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        parts.append(texts.get(operator, key))
    return joined(parts)


def template(obj: Object, field: str) -> str:
    """Return a field of all containers of an object's pod template: name or image."""
    spec = at(obj, "spec", "template", "spec") or at(obj, "spec", "jobTemplate", "spec", "template", "spec") or {}
    return joined((container.get(field, "") for container in spec.get("containers") or ()), "")


def node_status(obj: Object) -> str:
    """Return a node's state: Ready, NotReady or Unknown, and whether it is cordoned."""
    ready = next((row for row in at(obj, "status", "conditions") or () if row.get("type") == "Ready"), None)
    states = {"True": "Ready", "False": "NotReady"}
    text = states.get(ready.get("status", ""), "NotReady") if ready else "Unknown"
    return f"{text},SchedulingDisabled" if at(obj, "spec", "unschedulable") else text


def node_roles(obj: Object) -> str:
    """Return a node's roles by its labels."""
    prefix, labels = "node-role.kubernetes.io/", obj["metadata"].get("labels") or {}
    names = [key.removeprefix(prefix) for key in labels if key.startswith(prefix)]
    old = [labels["kubernetes.io/role"]] if labels.get("kubernetes.io/role") else []
    return joined(sorted({name for name in [*names, *old] if name}))


def node_address(obj: Object, kind: str) -> str:
    """Return a node's address of a kind."""
    rows = at(obj, "status", "addresses") or ()
    return next((row["address"] for row in rows if row.get("type") == kind), NONE)


def service_ports(obj: Object) -> str:
    """Return a Service's ports: ``80/TCP`` or ``80:30001/TCP``."""
    texts = []
    for port in at(obj, "spec", "ports") or ():
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        texts.append(f"{port.get('port')}{node_port}/{port.get('protocol', 'TCP')}")
    return joined(texts)


def external_ip(obj: Object) -> str:
    """Return where a Service is reached from outside."""
    kind = at(obj, "spec", "type")
    if kind == "ExternalName":
        return str(at(obj, "spec", "externalName") or "")
    given = at(obj, "spec", "externalIPs") or []
    rows = at(obj, "status", "loadBalancer", "ingress") or ()
    found = [row.get("ip") or row.get("hostname") for row in rows if kind == "LoadBalancer"]
    return joined([*found, *given], "<pending>" if kind == "LoadBalancer" else NONE)


def job_status(obj: Object) -> str:
    """Return a job's state."""
    true = {row["type"] for row in at(obj, "status", "conditions") or () if row.get("status") == "True"}
    for name in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if name in true:
            return name
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else "Running"


def job_completions(obj: Object) -> str:
    """Return how many of a job's pods are done: ``0/1``."""
    done, wanted = at(obj, "status", "succeeded") or 0, at(obj, "spec", "completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallel = at(obj, "spec", "parallelism") or 0
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def job_duration(obj: Object) -> str:
    """Return how long a job has run."""
    start, end = at(obj, "status", "startTime"), at(obj, "status", "completionTime")
    if not start:
        return ""
    first, last = moment(start), moment(end) if end else None
    return human_duration((last - first).total_seconds()) if first and last else since(start)


def endpoints(obj: Object) -> str:
    """Return the addresses of Endpoints, at most three of them."""
    texts = [
        f"{address.get('ip')}:{port.get('port')}"
        for subset in obj.get("subsets") or ()
        for address in subset.get("addresses") or ()
        for port in subset.get("ports") or ()
    ]
    return _some(texts, NONE)


def subjects(obj: Object, kind: str) -> str:
    """Return the subjects of a role binding of a kind."""
    rows = [row for row in obj.get("subjects") or () if row.get("kind") == kind]
    names = [f"{row.get('namespace')}/{row['name']}" if kind == "ServiceAccount" else row["name"] for row in rows]
    return ", ".join(names)


def event_object(obj: Object) -> str:
    """Return what an event is about: ``pod/name``."""
    about = obj.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def event_source(obj: Object) -> str:
    """Return who recorded an event."""
    source = obj.get("source") or {}
    return joined((source.get(name) for name in ("component", "host") if source.get(name)), "") or str(
        obj.get("reportingComponent") or ""
    )


def event_time(obj: Object, *, first: bool) -> str:
    """Return how long ago an event was seen last, or first."""
    series = at(obj, "series", "lastObservedTime")
    texts = (obj.get("firstTimestamp"),) if first else (series, obj.get("lastTimestamp"))
    return since(
        next((text for text in (*texts, obj.get("eventTime"), obj["metadata"]["creationTimestamp"]) if text), None)
    )


def controller(obj: Object) -> str:
    """Return the controller that owns an object: ``daemonset.apps/name``."""
    owners = obj["metadata"].get("ownerReferences") or ()
    owner = next((row for row in owners if row.get("controller")), None)
    if owner is None:
        return NONE
    group, kind = owner["apiVersion"].rpartition("/")[0], owner["kind"].lower()
    return f"{kind}.{group}/{owner['name']}" if group else f"{kind}/{owner['name']}"


def slice_addresses(obj: Object) -> str:
    """Return the addresses of an EndpointSlice, at most three of them."""
    return _some([address for row in obj.get("endpoints") or () for address in row.get("addresses") or ()], UNSET)


def _some(texts: list[str], empty: str) -> str:
    more = f" + {len(texts) - _SHOWN} more..." if len(texts) > _SHOWN else ""
    return joined(texts[:_SHOWN], empty) + more


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
