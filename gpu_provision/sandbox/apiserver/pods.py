"""The subresources of pods: logs, eviction under PodDisruptionBudgets, binding."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.calls import Call, Reply, Stream, reply
from gpu_provision.sandbox.apiserver.deletion import delete_options
from gpu_provision.sandbox.apiserver.objects import at, moment, now
from gpu_provision.sandbox.apiserver.pod_defaults import containers
from gpu_provision.sandbox.apiserver.podlogs import LogOptions
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.selectors import all_satisfied, requirements_of
from gpu_provision.sandbox.apiserver.status import (
    Cause,
    StatusError,
    bad_request,
    conflict,
    invalid_value,
    not_found,
    success,
    too_many_requests,
)
from gpu_provision.sandbox.apiserver.store import Item
from gpu_provision.sandbox.apiserver.targets import Target
from gpu_provision.sandbox.objects import explain_missing_log


def bound(pod: Object, node: str, info: ResourceInfo) -> Object:
    """Return the pod as bound to ``node``. Raises StatusError 409 if it is bound or being deleted."""
    name, current = pod["metadata"]["name"], pod["spec"].get("nodeName")
    if current:
        raise conflict(info, name, f'pod {name} is already assigned to node "{current}"')
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict(info, name, f"pod {name} is being deleted, cannot be assigned to a host")
    status = pod.get("status") or {}
    others = [row for row in status.get("conditions") or () if row.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()}
    return {
        **pod,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**status, "conditions": [*others, scheduled]},
    }


BUDGETS = "policy/poddisruptionbudgets"
_PROCESSING_SECONDS = 10
_BLOCKED = "Cannot evict pod as it would violate the pod's disruption budget."


def _budgets(registry: Registry, pod: Object) -> list[Item]:
    labels = pod["metadata"].get("labels") or {}
    return [
        item
        for item in registry.store.select(BUDGETS, pod["metadata"]["namespace"])
        if all_satisfied(requirements_of(at(item.object, "spec", "selector")), labels)
    ]


def _ready(pod: Object) -> bool:
    conditions = at(pod, "status", "conditions") or ()
    return any(row.get("type") == "Ready" and row.get("status") == "True" for row in conditions)


def checked_budgets(registry: Registry, pod: Object) -> Callable[[], None]:
    """Refuse (429) an eviction that a budget forbids; return what to call when the eviction is done."""
    phase, dying = at(pod, "status", "phase"), pod["metadata"].get("deletionTimestamp")
    budgets = [] if phase in ("Succeeded", "Failed", "Pending") or dying else _budgets(registry, pod)
    if not budgets:
        return _nothing
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(500, "", message)
    budget = budgets[0].object
    if not _ready(pod) and not _needs_all(budget):
        return _nothing
    if (at(budget, "status", "observedGeneration") or 0) < (budget["metadata"].get("generation") or 0):
        why = f"The disruption budget {budget['metadata']['name']} is still being processed by the server."
        raise _refused(why, _PROCESSING_SECONDS)
    if (at(budget, "status", "disruptionsAllowed") or 0) <= 0:
        raise _refused(_needs(budget), 0)
    return lambda: _count(registry, budget, pod["metadata"]["name"])


def _nothing() -> None:
    return None


def _needs_all(budget: Object) -> bool:
    """Say whether an unready pod counts: only while the budget is below what it wants."""
    status = budget.get("status") or {}
    return (status.get("currentHealthy") or 0) < (status.get("desiredHealthy") or 0)


def _needs(budget: Object) -> str:
    status = budget.get("status") or {}
    return (
        f"The disruption budget {budget['metadata']['name']} needs {status.get('desiredHealthy', 0)} healthy pods "
        f"and has {status.get('currentHealthy', 0)} currently"
    )


def _refused(why: str, retry_after: int) -> StatusError:
    return too_many_requests(_BLOCKED, retry_after=retry_after, causes=[Cause("DisruptionBudget", why)])


def _count(registry: Registry, budget: Object, pod: str) -> None:
    """Take one from what the budget allows, so that the next eviction sees it before the controller does."""
    info = registry.catalog.of_storage(BUDGETS)
    if info is None:
        return
    metadata = budget["metadata"]

    def fewer(obj: Object) -> Object:
        status: Object = obj["status"]
        status["disruptionsAllowed"] -= 1
        status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod: now()}
        return obj

    target = Target(info, metadata["namespace"], metadata["name"], "status")
    registry.change(target, fewer, WriteOptions("kube-apiserver"))


_CREATED, _NO_CONTENT = 201, 204
_TEXT = "text/plain"
_EVICTED: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": _CREATED}
_OVER = ("Succeeded", "Failed")
_LEAST = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}


def _pod(registry: Registry, call: Call) -> Object:
    return registry.item(call.target).object


def no_processes(registry: Registry, call: Call) -> Reply:
    """Refuse exec, attach and portforward."""
    _pod(registry, call)
    message = f"the sandbox's pods are simulated and have no processes: {call.target.subresource} is not possible"
    raise StatusError(501, "NotImplemented", message)


def bind(registry: Registry, call: Call) -> Reply:
    """Bind a pod to a node, as schedulers do."""
    node = at(call.object(), "target", "name")
    if not node:
        message = "target.name: Required value"
        raise bad_request(message)
    item = registry.change(call.target, lambda pod: bound(pod, node, call.info), call.write_options())
    return reply(success(call.info, call.target.name, item.object["metadata"]["uid"]), _CREATED)


def evict(registry: Registry, call: Call) -> Reply:
    """Delete a pod unless a PodDisruptionBudget forbids it (429)."""
    body = call.details() or {}
    options = delete_options(body.get("deleteOptions"))
    pod = _pod(registry, call)
    if (at(body, "metadata", "name") or call.target.name) != call.target.name:
        message = "name in URL does not match name in Eviction object"
        raise bad_request(message)
    settle = checked_budgets(registry, pod)
    if call.dry_run() or options.dry_run:
        return reply(_EVICTED, _CREATED)
    settle()
    registry.delete(call.target, options)
    return reply(_EVICTED, _CREATED)


def append_log(registry: Registry, call: Call) -> Reply:
    """Take text for a container's log: an extension for simulated nodes in another process."""
    pod = _pod(registry, call)
    container, restart = _container(pod, call), call.number("restart") or 0
    registry.store.logs.append(pod["metadata"]["uid"], container, call.body.decode("utf-8", "replace"), restart=restart)
    return reply(success(call.info, call.target.name, pod["metadata"]["uid"]), _CREATED)


def _container(pod: Object, call: Call) -> str:
    names = [container["name"] for container in containers(pod["spec"])]
    own = [container["name"] for container in pod["spec"]["containers"]]
    name, chosen = pod["metadata"]["name"], call.query.get("container", "")
    if chosen and chosen not in names:
        message = f"container {chosen} is not valid for pod {name}"
        raise bad_request(message)
    if not chosen and len(own) > 1:
        inits = [container["name"] for container in pod["spec"].get("initContainers") or ()]
        more = f" or one of the init containers: [{' '.join(inits)}]" if inits else ""
        message = f"a container name must be specified for pod {name}, choose one of: [{' '.join(own)}]{more}"
        raise bad_request(message)
    return chosen or own[0]


def _status(pod: Object, container: str) -> Object:
    for part in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for row in at(pod, "status", part) or ():
            if row.get("name") == container:
                found: Object = row
                return found
    return {}


def _options(call: Call) -> LogOptions:
    for name, least in _LEAST.items():
        number = call.number(name)
        if number is not None and number < least:
            cause = invalid_value(name, str(number), f"must be greater than {'or equal to ' if not least else ''}0")
            raise StatusError(422, "Invalid", f'PodLogOptions "{call.target.name}" is invalid: {name}: {cause.message}')
    since = moment(call.query["sinceTime"]) if "sinceTime" in call.query else None
    seconds = call.number("sinceSeconds")
    start = since.timestamp() if since else time.time() - seconds if seconds is not None else 0
    return LogOptions(
        tail=call.number("tailLines"),
        since=start,
        timestamps=call.flag("timestamps"),
        limit_bytes=call.number("limitBytes"),
    )


def _which_run(registry: Registry, call: Call, pod: Object, container: str) -> int:
    """Return the restart whose log is asked for. Raises StatusError 400 while there is none."""
    name, status = pod["metadata"]["name"], _status(pod, container)
    newest = max(registry.store.logs.last_restart(pod["metadata"]["uid"], container), status.get("restartCount") or 0)
    if call.flag("previous"):
        if not newest:
            message = f'previous terminated container "{container}" in pod "{name}" not found'
            raise bad_request(message)
        return newest - 1
    waiting = at(status, "state", "waiting")
    if waiting is not None and not newest and not status.get("lastState"):
        raise bad_request(explain_missing_log(container, name, waiting.get("reason") or ""))
    return (
        newest if waiting is None or not newest else registry.store.logs.last_restart(pod["metadata"]["uid"], container)
    )


def read_log(registry: Registry, call: Call) -> Reply | Stream:
    """Read or follow a container's log."""
    pod, options = _pod(registry, call), _options(call)
    container, node = _container(pod, call), at(pod, "spec", "nodeName")
    if not node:
        return Reply(_NO_CONTENT, b"", _TEXT)
    if registry.store.get("/nodes", node) is None:
        raise not_found(call.info, node)
    run = _which_run(registry, call, pod, container)
    if call.flag("follow"):
        return Stream(_followed(registry, call, container, run, options), _TEXT)
    text, _ = registry.store.logs.read(pod["metadata"]["uid"], container, run, options)
    return Reply(200, text.encode(), _TEXT)


async def _followed(
    registry: Registry, call: Call, container: str, run: int, options: LogOptions
) -> AsyncIterator[bytes]:
    logs, uid, after = registry.store.logs, _pod(registry, call)["metadata"]["uid"], 0
    async for _ in logs.changes(uid):
        over = _ended(registry, call, uid, container, run)
        text, after = logs.read(uid, container, run, options, after)
        options = options._replace(tail=None)
        yield text.encode()
        if over:
            return


def _ended(registry: Registry, call: Call, uid: str, container: str, run: int) -> bool:
    """Say whether a container's run will print no more."""
    item = registry.store.get(call.info.storage, call.target.name, call.target.namespace)
    if item is None or item.object["metadata"]["uid"] != uid:
        return True
    status = _status(item.object, container)
    stopped = at(status, "state", "terminated") is not None or (status.get("restartCount") or 0) > run
    return stopped or at(item.object, "status", "phase") in _OVER
