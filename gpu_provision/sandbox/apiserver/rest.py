"""The REST verbs: a call for a resource -> an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import pods, reviews, scale
from gpu_provision.sandbox.apiserver.calls import Call, Reply, Stream, decoded, reply
from gpu_provision.sandbox.apiserver.deletion import DeleteOptions, delete_options
from gpu_provision.sandbox.apiserver.patches import json_patched, merged, strategic_merged
from gpu_provision.sandbox.apiserver.reading import Selection, listed, page, parsed_version
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.status import (
    StatusError,
    bad_request,
    method_not_allowed,
    success,
    too_large_version,
    unsupported_media_type,
)
from gpu_provision.sandbox.apiserver.strictness import checked
from gpu_provision.sandbox.apiserver.tables import answer, form_of, many
from gpu_provision.sandbox.apiserver.targets import Target
from gpu_provision.sandbox.apiserver.watching import watch

Answer = Reply | Stream
Handler = Callable[[Registry, Call], Answer | Awaitable[Answer]]
_CREATED = 201
_APPLY = "application/apply-patch+yaml"
_STRATEGIC = "application/strategic-merge-patch+json"
_PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/json-patch+json": json_patched,
    "application/merge-patch+json": merged,
    _STRATEGIC: strategic_merged,
}
_MADE_BY_UPDATE = (
    "/endpoints",
    "/events",
    "/limitranges",
    "coordination.k8s.io/leases",
    "node.k8s.io/runtimeclasses",
    "rbac.authorization.k8s.io/clusterrolebindings",
    "rbac.authorization.k8s.io/clusterroles",
    "rbac.authorization.k8s.io/rolebindings",
    "rbac.authorization.k8s.io/roles",
)
# A subresource that is written as the object itself.
_PARTS = ("status", "finalize", "ephemeralcontainers")


def verb_of(call: Call) -> str:
    """Return the Kubernetes verb of a call, as rules and permissions name it."""
    match call.method, bool(call.target.name):
        case "GET", True:
            return "get"
        case "GET", False:
            return "watch" if call.flag("watch") else "list"
        case "DELETE", False:
            return "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(call.method, "")


def is_apply(call: Call) -> bool:
    """Whether a call applies on the server's side, which may create the object."""
    return call.method == "PATCH" and call.content_type == _APPLY


def may_create(call: Call) -> bool:
    """Whether a call that changes an object creates it if it is not there."""
    return is_apply(call) or (call.method == "PUT" and call.info.storage in _MADE_BY_UPDATE)


def get(registry: Registry, call: Call) -> Reply:
    """Read one object."""
    item = registry.item(call.target)
    return answer(item, call, registry.custom)


def _selection(call: Call) -> Selection:
    query = call.query
    return Selection(call.target.namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))


def list_objects(registry: Registry, call: Call) -> Answer:
    """Read a list, or watch it."""
    if call.flag("watch"):
        return watch(registry, call, _selection(call))
    version, token = parsed_version(call.query.get("resourceVersion", "")), call.query.get("continue", "")
    if token and version:
        message = "specifying resource version is not allowed when using continue"
        raise bad_request(message)
    if version > registry.store.version:
        raise too_large_version(version, registry.store.version)
    part = page(registry.store, call.info, _selection(call), call.number("limit") or 0, token)
    metadata: Object = {"resourceVersion": str(part.version)}
    if part.next:
        counted = {} if part.remaining is None else {"remainingItemCount": part.remaining}
        metadata |= {"continue": part.next} | counted
    return Reply(200, many(part.items, call.info, form_of(call), registry.custom, metadata))


def create(registry: Registry, call: Call) -> Reply:
    """Create an object."""
    if call.info.namespaced and not call.target.namespace:
        message = "an empty namespace may not be set during creation"
        raise bad_request(message)
    body, warnings = checked(call.object(), call, registry.custom)
    item = registry.create(call.target, body, call.write_options())
    made = answer(item, call, registry.custom, _CREATED)
    return Reply(made.code, made.body, made.type, warnings)


def update(registry: Registry, call: Call) -> Reply:
    """Replace an object, or the part of it that a subresource names."""
    body, warnings = checked(call.object(), call, registry.custom)
    is_new = may_create(call) and not call.target.subresource and registry.is_missing(call.target)
    write = registry.create if is_new else registry.update
    item = write(call.target, body, call.write_options())
    made = answer(item, call, registry.custom, _CREATED if is_new else 200)
    return Reply(made.code, made.body, made.type, warnings)


def patch(registry: Registry, call: Call) -> Reply:
    """Patch an object in one of four ways."""
    if is_apply(call):
        return _apply(registry, call)
    accepted = [kind for kind in _PATCHES if not (call.info.custom and kind == _STRATEGIC)]
    if call.content_type not in accepted:
        raise unsupported_media_type(call.content_type, [*accepted, _APPLY])
    change, body = _PATCHES[call.content_type], decoded(call.body)
    warnings: tuple[tuple[str, str], ...] = ()

    def changed(obj: Object) -> Object:
        nonlocal warnings
        result, warnings = checked(change(obj, body), call, registry.custom)
        return result

    item = registry.change(call.target, changed, call.write_options())
    made = answer(item, call, registry.custom)
    return Reply(made.code, made.body, made.type, warnings)


def _apply(registry: Registry, call: Call) -> Reply:
    if not call.query.get("fieldManager"):
        message = 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
        raise StatusError(422, "Invalid", message)
    config = decoded(call.body)
    given = config.get("apiVersion", "") if isinstance(config, dict) else call.info.api_version
    if given != call.info.api_version:
        message = f"Incorrect version specified in apply patch. Specified patch version: {given}, expected: "
        raise bad_request(message + call.info.api_version)
    body, warnings = checked(config, call, registry.custom)
    item, new = registry.apply(call.target, body, call.write_options(), force=call.flag("force"))
    made = answer(item, call, registry.custom, _CREATED if new else 200)
    return Reply(made.code, made.body, made.type, warnings)


def _delete_options(call: Call) -> DeleteOptions:
    given = dict(call.details() or {})
    for name in ("propagationPolicy", "gracePeriodSeconds"):
        if name in call.query:
            given[name] = call.number(name) if name == "gracePeriodSeconds" else call.query[name]
    if call.dry_run():
        given["dryRun"] = ["All"]
    return delete_options(given)


def delete(registry: Registry, call: Call) -> Reply:
    """Delete an object."""
    item, gone = registry.delete(call.target, _delete_options(call))
    if not gone:
        return answer(item, call, registry.custom)
    return reply(success(call.info, call.target.name, item.object["metadata"]["uid"]))


def delete_collection(registry: Registry, call: Call) -> Reply:
    """Delete everything that is selected; answer with what it was."""
    options = _delete_options(call)
    items = listed(registry.store, call.info, _selection(call))
    for item in items:
        metadata = item.object["metadata"]
        registry.delete(Target(call.info, metadata.get("namespace", ""), metadata["name"]), options)
    metadata = {"resourceVersion": str(registry.store.version)}
    return Reply(200, many(items, call.info, form_of(call), registry.custom, metadata))


_COLLECTION: dict[str, Handler] = {"GET": list_objects, "POST": create, "DELETE": delete_collection}
_OBJECT: dict[str, Handler] = {"GET": get, "PUT": update, "PATCH": patch, "DELETE": delete}
_SUBRESOURCES: dict[tuple[str, str], Handler] = {
    ("GET", "log"): pods.read_log,
    ("POST", "log"): pods.append_log,
    ("POST", "eviction"): pods.evict,
    ("POST", "binding"): pods.bind,
    ("GET", "exec"): pods.no_processes,
    ("POST", "exec"): pods.no_processes,
    ("GET", "attach"): pods.no_processes,
    ("POST", "attach"): pods.no_processes,
    ("GET", "portforward"): pods.no_processes,
    ("POST", "portforward"): pods.no_processes,
    ("GET", "scale"): scale.get,
    ("PUT", "scale"): scale.update,
    ("PATCH", "scale"): scale.patch,
    ("POST", "token"): reviews.request_token,
}


def _handler(call: Call) -> Handler:
    target, method = call.target, call.method
    if target.subresource in _PARTS:
        found = _OBJECT.get(method) if method != "DELETE" else None
    elif target.subresource:
        found = _SUBRESOURCES.get((method, target.subresource))
    elif target.name:
        found = _OBJECT.get(method)
    else:
        found = _COLLECTION.get(method)
    if found is None:
        raise method_not_allowed()
    return found


async def handle(registry: Registry, call: Call) -> Answer:
    """Answer a call. Raises StatusError."""
    if call.target.info.verbs == ("create",):
        if call.method != "POST" or call.target.name:
            raise method_not_allowed()
        return reviews.answer(registry, call)
    handler = _handler(call)
    if not call.target.subresource and verb_of(call) not in call.info.verbs:
        raise method_not_allowed()
    made = handler(registry, call)
    return made if isinstance(made, Reply | Stream) else await made
