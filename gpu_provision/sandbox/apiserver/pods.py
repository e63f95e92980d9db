"""The subresources of pods: logs, eviction under PodDisruptionBudgets, binding."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import errors
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.request import Request, Response, StreamResponse, json_response
from gpu_provision.sandbox.apiserver.resources import RequestInfo, ResourceInfo
from gpu_provision.sandbox.apiserver.store import LogOptions
from gpu_provision.sandbox.apiserver.strategy import DeleteOptions, parse_delete_options
from gpu_provision.sandbox.objects import (
    explain_missing_log,
    has_condition,
    matches_selector,
    parse_time,
    timestamp,
    value_at,
)

BUDGETS = "policy/poddisruptionbudgets"
_PROCESSING_SECONDS = 10
_CREATED, _NO_CONTENT, _TEXT = 201, 204, "text/plain"
_OVER = ("Succeeded", "Failed")
_MINIMA = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}


def bind_to_node(pod: Object, node: str, info: ResourceInfo) -> Object:
    """Return the pod bound to ``node``. Raises StatusError 409 if it is bound or being deleted."""
    name, current = pod["metadata"]["name"], pod["spec"].get("nodeName")
    if current:
        raise errors.conflict(info, name, f'pod {name} is already assigned to node "{current}"')
    if pod["metadata"].get("deletionTimestamp"):
        raise errors.conflict(info, name, f"pod {name} is being deleted, cannot be assigned to a host")
    status = pod.get("status") or {}
    others = [row for row in status.get("conditions") or () if row.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": timestamp()}
    return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": {**status, "conditions": [*others, scheduled]}}


def bind(registry: Registry, request: Request) -> Response:
    """Answer POST ``pods/binding``."""
    node, info = value_at(request.object(), "target", "name"), request.info
    if not node:
        errors.refuse("target.name: Required value")
    item = registry.patch(request.target, lambda pod: bind_to_node(pod, node, info), request.write_options())
    return json_response(errors.success(info, request.target.name, item.object["metadata"]["uid"]), _CREATED)


def refuse_exec(registry: Registry, request: Request) -> Response:
    """Refuse ``pods/exec``."""
    registry.get(request.target)
    message = "the sandbox's pods are simulated and have no processes: exec is not possible"
    raise errors.StatusError(501, "NotImplemented", message)


def evict(registry: Registry, request: Request) -> Response:
    """Delete a pod unless a PodDisruptionBudget forbids it (429)."""
    body = request.object() or {}
    options = parse_delete_options(body.get("deleteOptions"))
    if (value_at(body, "metadata", "name") or request.target.name) != request.target.name:
        errors.refuse("name in URL does not match name in Eviction object")
    evict_pod(registry, request.target, replace(options, dry_run=options.dry_run or request.dry_run()))
    evicted = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": _CREATED}
    return json_response(evicted, _CREATED)


def evict_pod(registry: Registry, target: RequestInfo, options: DeleteOptions) -> None:
    """Delete a pod as an eviction does. Raises StatusError 429 if a PodDisruptionBudget forbids it."""
    budget = _check_budgets(registry, registry.get(target).object)
    if not options.dry_run:
        if budget:
            _count_eviction(registry, budget, target.name)
        registry.delete(target, options)


def _check_budgets(registry: Registry, pod: Object) -> Object | None:
    """Refuse (429) an eviction that a budget forbids; return the budget that counts it."""
    metadata = pod["metadata"]
    if value_at(pod, "status", "phase") in (*_OVER, "Pending") or metadata.get("deletionTimestamp"):
        return None
    budgets = [
        item.object
        for item in registry.store.select(BUDGETS, metadata["namespace"])
        if matches_selector(value_at(item.object, "spec", "selector"), metadata.get("labels") or {})
    ]
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise errors.StatusError(500, "", message)
    if not budgets:
        return None
    [budget] = budgets
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    healthy, desired = status.get("currentHealthy") or 0, status.get("desiredHealthy") or 0
    if not has_condition(pod, "Ready") and healthy >= desired:
        return None
    if (status.get("observedGeneration") or 0) < (budget["metadata"].get("generation") or 0):
        why, seconds = f"The disruption budget {name} is still being processed by the server.", _PROCESSING_SECONDS
    elif (status.get("disruptionsAllowed") or 0) <= 0:
        why, seconds = f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently", 0
    else:
        return budget
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    raise errors.too_many_requests(message, retry_after=seconds, causes=[errors.Cause("DisruptionBudget", why)])


def _count_eviction(registry: Registry, budget: Object, pod: str) -> None:
    """Decrement the budget's disruptionsAllowed, so that the next eviction need not wait for the controller."""
    info, metadata = registry.catalog.find("policy", "v1", "poddisruptionbudgets"), budget["metadata"]

    def decrement(obj: Object) -> Object:
        status: Object = obj["status"]
        status["disruptionsAllowed"] -= 1
        status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod: timestamp()}
        return obj

    if info:
        target = RequestInfo(info, metadata["namespace"], metadata["name"], "status")
        registry.patch(target, decrement, WriteOptions("kube-apiserver"))


def append_log(registry: Registry, request: Request) -> Response:
    """Append to a container's log: an extension for simulated nodes in another process."""
    pod = registry.get(request.target).object
    uid, container, restart = pod["metadata"]["uid"], _choose_container(pod, request), request.number("restart") or 0
    registry.store.logs.append(uid, container, request.body.decode("utf-8", "replace"), restart=restart)
    return json_response(errors.success(request.info, request.target.name, uid), _CREATED)


def read_log(registry: Registry, request: Request) -> Response | StreamResponse:
    """Read or follow a container's log."""
    pod, options = registry.get(request.target).object, _log_options(request)
    container, node = _choose_container(pod, request), value_at(pod, "spec", "nodeName")
    if not node:
        return Response(_NO_CONTENT, b"", _TEXT)
    if registry.store.get("/nodes", node) is None:
        raise errors.not_found(request.info, node)
    uid, restart = pod["metadata"]["uid"], _choose_restart(registry, request, pod, container)
    if request.flag("follow"):
        return StreamResponse(_follow_log(registry, request, uid, container, restart, options), _TEXT)
    text, _ = registry.store.logs.read(uid, container, restart, options)
    return Response(200, text.encode(), _TEXT)


def _choose_container(pod: Object, request: Request) -> str:
    inits, own = (
        [container["name"] for container in pod["spec"].get(field) or ()] for field in ("initContainers", "containers")
    )
    name, chosen = pod["metadata"]["name"], request.query.get("container", "")
    if chosen and chosen not in (*inits, *own):
        errors.refuse(f"container {chosen} is not valid for pod {name}")
    if not chosen and len(own) > 1:
        more = f" or one of the init containers: [{' '.join(inits)}]" if inits else ""
        errors.refuse(f"a container name must be specified for pod {name}, choose one of: [{' '.join(own)}]{more}")
    return chosen or own[0]


def _find_status(pod: Object, container: str) -> Object:
    rows = [
        *(value_at(pod, "status", "containerStatuses") or ()),
        *(value_at(pod, "status", "initContainerStatuses") or ()),
    ]
    return next((row for row in rows if row.get("name") == container), {})


def _log_options(request: Request) -> LogOptions:
    for name, least in _MINIMA.items():
        number = request.number(name)
        if number is not None and number < least:
            text = f"{name}: Invalid value: {number}: must be greater than {'or equal to ' if not least else ''}0"
            raise errors.StatusError(422, "Invalid", f'PodLogOptions "{request.target.name}" is invalid: {text}')
    try:
        since = parse_time(request.query.get("sinceTime"))
    except ValueError as error:
        errors.refuse(f"sinceTime: {error}")
    seconds = request.number("sinceSeconds")
    start = since.timestamp() if since else time.time() - seconds if seconds is not None else 0
    tail, limit = request.number("tailLines"), request.number("limitBytes")
    return LogOptions(tail=tail, since=start, timestamps=request.flag("timestamps"), limit_bytes=limit)


def _choose_restart(registry: Registry, request: Request, pod: Object, container: str) -> int:
    """Return the restart whose log a request reads. Raises StatusError 400 if it has none."""
    name, status = pod["metadata"]["name"], _find_status(pod, container)
    logged = registry.store.logs.last_restart(pod["metadata"]["uid"], container)
    newest, waiting = max(logged, status.get("restartCount") or 0), value_at(status, "state", "waiting")
    if request.flag("previous"):
        if not newest:
            errors.refuse(f'previous terminated container "{container}" in pod "{name}" not found')
        return newest - 1
    if waiting is not None and not newest and not status.get("lastState"):
        errors.refuse(explain_missing_log(container, name, waiting.get("reason") or ""))
    return newest if waiting is None else logged


async def _follow_log(  # noqa: PLR0913, PLR0917 - what identifies a log
    registry: Registry, request: Request, uid: str, container: str, restart: int, options: LogOptions
) -> AsyncIterator[bytes]:
    logs, after = registry.store.logs, 0
    async for _ in logs.changes(uid):
        has_ended = _has_ended(registry, request, uid, container, restart)
        text, after = logs.read(uid, container, restart, options, after)
        options = options._replace(tail=None)
        yield text.encode()
        if has_ended:
            return


def _has_ended(registry: Registry, request: Request, uid: str, container: str, restart: int) -> bool:
    item = registry.store.get(request.info.storage, request.target.name, request.target.namespace)
    if item is None or item.object["metadata"]["uid"] != uid:
        return True
    status = _find_status(item.object, container)
    stopped = value_at(status, "state", "terminated") is not None or (status.get("restartCount") or 0) > restart
    return stopped or value_at(item.object, "status", "phase") in _OVER
