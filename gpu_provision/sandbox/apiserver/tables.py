"""The output forms of a response: objects, their metadata, or the Table of ``kubectl get``."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.request import Request, Response
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.store import StoredObject
from gpu_provision.sandbox.objects import parse_time, to_json, value_at

NONE, UNKNOWN = "<none>", "<unknown>"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_META, _ROLE = "meta.k8s.io/v1", "node-role.kubernetes.io/"
_JSON_PATH_STEP = re.compile(
    r"""\.(?P<key>(?:[\w/-]|\\\.)+) | \[\?\(@\.(?P<field>\w+)\s*==\s*['"](?P<value>[^'"]*)['"]\)\]""", re.VERBOSE
)


def human_duration(seconds: float) -> str:
    """Return a duration in short form: ``45s``, ``5m12s``, ``3h5m``, ``2d3h``, ``400d``, ``3y12d``."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    minutes, hours, days = total // _MINUTE, total // _HOUR, total // _DAY
    steps = (  # the first upper bound, in seconds, as in Kubernetes
        (2 * _MINUTE, f"{max(total, 0)}s"),
        (10 * _MINUTE, _two_units(minutes, "m", total % 60, "s")),
        (3 * _HOUR, f"{minutes}m"),
        (8 * _HOUR, _two_units(hours, "h", minutes % 60, "m")),
        (48 * _HOUR, f"{hours}h"),
        (8 * _DAY, _two_units(days, "d", hours % 24, "h")),
        (2 * 365 * _DAY, f"{days}d"),
        (8 * 365 * _DAY, _two_units(days // 365, "y", days % 365, "d")),
    )
    return next((text for bound, text in steps if total < bound), f"{days // 365}y")


def _two_units(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large}{unit}{small}{small_unit}" if small else f"{large}{unit}"


def age(timestamp: Any) -> str:
    """Return the age of a timestamp."""
    try:
        then = parse_time(timestamp)
    except (TypeError, ValueError):  # a custom object may have any text
        then = None
    return human_duration((dt.datetime.now(dt.UTC) - then).total_seconds()) if then else UNKNOWN


def _join(values: Iterable[Any], empty: str = NONE) -> str:
    return ",".join(str(value) for value in values) or empty


def _labels(labels: Mapping[str, Any] | None) -> str:
    return _join(f"{key}={value}" for key, value in sorted((labels or {}).items()))


def _selector(obj: Object) -> str:
    selector = value_at(obj, "spec", "selector") or {}
    return _labels(selector.get("matchLabels") if "matchLabels" in selector else selector)


def _join_container_field(obj: Object, field: str) -> str:
    return _join((one.get(field, "") for one in value_at(obj, "spec", "template", "spec", "containers") or ()), "")


def node_status(node: Object) -> str:
    """Return the STATUS column: Ready, NotReady or Unknown, and SchedulingDisabled for a cordon."""
    ready = next((row for row in value_at(node, "status", "conditions") or () if row.get("type") == "Ready"), None)
    states = {"True": "Ready", "False": "NotReady"}
    text = states.get(ready.get("status", ""), "NotReady") if ready else "Unknown"
    return f"{text},SchedulingDisabled" if value_at(node, "spec", "unschedulable") else text


def _event_age(event: Object) -> str:
    times = (event.get("lastTimestamp"), event.get("eventTime"), value_at(event, "metadata", "creationTimestamp"))
    return age(next((time for time in times if time), None))


def _pod_statuses(pod: Object, field: str) -> list[Object]:
    return value_at(pod, "status", field) or []


def _init_status(pod: Object) -> str:
    """Return the status of the first unfinished init container; empty if all have ended."""
    for index, row in enumerate(_pod_statuses(pod, "initContainerStatuses")):
        terminated, waiting = value_at(row, "state", "terminated"), value_at(row, "state", "waiting", "reason")
        if terminated is None:
            default = f"{index}/{len(value_at(pod, 'spec', 'initContainers') or ())}"
            return f"Init:{waiting if waiting not in (None, '', 'PodInitializing') else default}"
        if terminated.get("exitCode") != 0:
            return f"Init:{_termination(terminated)}"
    return ""


def _termination(state: Object) -> str:
    if state.get("reason"):
        return str(state["reason"])
    return f"Signal:{state['signal']}" if state.get("signal") else f"ExitCode:{state.get('exitCode', 0)}"


def _container_status(pod: Object, reason: str) -> str:
    """Return the reason of the first waiting or ended container, else the pod's ``reason``."""
    is_running = False
    for row in reversed(_pod_statuses(pod, "containerStatuses")):
        waiting, terminated = value_at(row, "state", "waiting", "reason"), value_at(row, "state", "terminated")
        if waiting:
            reason = str(waiting)
        elif terminated is not None:
            reason = _termination(terminated)
        else:
            is_running = is_running or bool(row.get("ready"))
    return "NotReady" if reason == "Completed" and is_running else reason


def pod_status(pod: Object) -> str:
    """Return the STATUS column: Init:0/1, ContainerCreating, CrashLoopBackOff, Terminating ..."""
    phase = value_at(pod, "status", "phase") or ""
    if pod["metadata"].get("deletionTimestamp") and phase not in ("Succeeded", "Failed"):
        return "Terminating"
    return _init_status(pod) or _container_status(pod, value_at(pod, "status", "reason") or phase)


def pod_ready(pod: Object) -> str:
    """Return the READY column: ``1/2``."""
    rows = _pod_statuses(pod, "containerStatuses")
    done = sum(1 for row in rows if row.get("ready") and value_at(row, "state", "running") is not None)
    return f"{done}/{len(value_at(pod, 'spec', 'containers') or ())}"


def pod_restarts(pod: Object) -> str:
    """Return the RESTARTS column: ``3``, or ``3 (5m ago)``."""
    rows = _pod_statuses(pod, "initContainerStatuses" if _init_status(pod) else "containerStatuses")
    count = sum(row.get("restartCount") or 0 for row in rows)
    times = [time for row in rows if (time := value_at(row, "lastState", "terminated", "finishedAt"))]
    return f"{count} ({age(max(times))} ago)" if count and times else str(count)


CELLS: dict[str, Callable[[Object], Any]] = {
    "age": lambda obj: age(obj["metadata"].get("creationTimestamp")),
    "containers": partial(_join_container_field, field="name"),
    "data": lambda obj: len(obj.get("data") or ()),
    "event age": _event_age,
    "event object": lambda event: "/".join(
        (str(value_at(event, "involvedObject", "kind") or "").lower(), value_at(event, "involvedObject", "name") or "")
    ),
    "images": partial(_join_container_field, field="image"),
    "node roles": lambda node: _join(
        sorted(key.removeprefix(_ROLE) for key in value_at(node, "metadata", "labels") or () if key.startswith(_ROLE))
    ),
    "node selector": lambda obj: _labels(value_at(obj, "spec", "template", "spec", "nodeSelector")),
    "node status": node_status,
    "pod ready": pod_ready,
    "pod restarts": pod_restarts,
    "pod status": pod_status,
    "replicas": lambda obj: f"{value_at(obj, 'status', 'readyReplicas') or 0}/{value_at(obj, 'spec', 'replicas') or 0}",
    "selector": _selector,
    "service ports": lambda service: _join(
        f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in value_at(service, "spec", "ports") or ()
    ),
}
_NAME, _AGE = {"name": "Name", "jsonPath": ".metadata.name"}, {"name": "Age", "cell": "age"}


class OutputForm(NamedTuple):
    """``kind`` is Object, Table or PartialObjectMetadata; ``include`` selects the objects in a table's rows."""

    kind: str = "Object"
    include: str = "Metadata"


def output_form(request: Request) -> OutputForm:
    """Return the first supported form of the Accept header."""
    for choice in request.headers.get("Accept", "").split(","):
        parts = dict(part.strip().partition("=")[::2] for part in choice.split(";")[1:])
        kind = parts.get("as", "")
        if parts.get("v", "v1") != "v1":
            continue
        if kind == "Table":
            return OutputForm("Table", request.query.get("includeObject", "Metadata"))
        if kind.startswith("PartialObjectMetadata"):
            return OutputForm("PartialObjectMetadata")
        if not kind:
            break
    return OutputForm()


def render_object(item: StoredObject, info: ResourceInfo, form: OutputForm) -> bytes:
    """Return one object as JSON."""
    match form.kind:
        case "Table":
            return to_json(_table([item], info, {}, form.include))
        case "PartialObjectMetadata":
            return to_json(_metadata_only(item.object))
    return item.json


def render_list(items: list[StoredObject], info: ResourceInfo, form: OutputForm, metadata: Object) -> bytes:
    """Return a list as JSON."""
    match form.kind:
        case "Table":
            return to_json(_table(items, info, metadata, form.include))
        case "PartialObjectMetadata":
            head = {"kind": "PartialObjectMetadataList", "apiVersion": _META, "metadata": metadata}
            return to_json({**head, "items": [_metadata_only(item.object) for item in items]})
    head = {"kind": f"{info.kind}List", "apiVersion": info.api_version, "metadata": metadata}
    rows = (item.json if info.custom else item.json_without_kind for item in items)
    return to_json(head)[:-1] + b',"items":[' + b",".join(rows) + b"]}"


def object_response(item: StoredObject, request: Request, code: int = 200) -> Response:
    """Return one object in the requested form."""
    return Response(code, render_object(item, request.info, output_form(request)))


def _metadata_only(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": obj["metadata"]}


def _table(items: list[StoredObject], info: ResourceInfo, metadata: Object, include: str) -> Object:
    columns = info.columns or (_NAME, _AGE)
    if info.custom and info.columns:
        columns = (_NAME, *info.columns)
    plain = {"type": "string", "format": "", "description": "", "priority": 0}
    definitions = [
        plain | {key: column[key] for key in ("name", "type", "priority") if key in column} for column in columns
    ]
    definitions[0]["format"] = "name" if columns[0]["name"] == "Name" else ""
    shown: dict[str, Callable[[Object], Object | None]] = {"None": lambda _: None, "Object": lambda obj: obj}
    show = shown.get(include, _metadata_only)
    rows = [
        {"cells": [_cell(column, item.object, info) for column in columns], "object": show(item.object)}
        for item in items
    ]
    head = {"kind": "Table", "apiVersion": _META, "metadata": metadata}
    return {**head, "columnDefinitions": definitions, "rows": rows}


def _cell(column: Object, obj: Object, info: ResourceInfo) -> Any:
    if cell := column.get("cell"):
        return CELLS[cell](obj)
    value = find_json_path(obj, column["jsonPath"])
    if column.get("type") == "date" and value is not None:
        return age(value)
    if value in (None, ""):
        return value if info.custom else column.get("empty", NONE)
    return json.dumps(value) if isinstance(value, dict | list) else value


def find_json_path(value: Any, path: str) -> Any:
    """Return the value at a path; None for a missing value or an unsupported path."""
    place = 0
    while place < len(path):
        step = _JSON_PATH_STEP.match(path, place)
        if step is None:
            return None
        if step["key"]:
            value = value_at(value, step["key"].replace("\\.", "."))
        else:
            rows = value if isinstance(value, list) else ()
            value = next((row for row in rows if value_at(row, step["field"]) == step["value"]), None)
        place = step.end()
    return value
