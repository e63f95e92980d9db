"""The REST verbs, and the three patch types besides server-side apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonpatch
from jsonpointer import JsonPointerException

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import errors, list_watch, pods
from gpu_provision.sandbox.apiserver.auth import answer_review
from gpu_provision.sandbox.apiserver.fieldmanager.schema import DEDUCED, FieldShape, Type, type_of
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.request import Request, Response, StreamResponse, json_response, parse_body
from gpu_provision.sandbox.apiserver.resources import RequestInfo
from gpu_provision.sandbox.apiserver.strategy import DeleteOptions, parse_delete_options
from gpu_provision.sandbox.apiserver.tables import object_response, output_form, render_list
from gpu_provision.sandbox.apiserver.validation import validate_fields
from gpu_provision.sandbox.objects import deep_copy, key_of

_DIRECTIVE = "$patch"
_DELETE_FROM, _ORDER, _RETAIN = "$deleteFromPrimitiveList", "$setElementOrder", "$retainKeys"


def merge_patch(target: Any, patch: Any) -> Any:
    """Return ``target`` after a merge patch; None removes a key. The result shares unchanged parts."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Return ``target`` after a JSON patch. Raises StatusError 400 for a bad patch, 422 for a failed operation."""
    if not isinstance(operations, list):
        errors.refuse("error decoding patch: a JSON patch is a list of operations")
    try:
        return jsonpatch.apply_patch(target, operations)
    except (jsonpatch.JsonPatchConflict, jsonpatch.JsonPatchTestFailed) as error:
        cause = errors.Cause("FieldValueInvalid", str(error))
        text = f"the server rejected our request due to an error in our request: {error}"
        raise errors.StatusError(422, "Invalid", text, details={"causes": [cause._asdict()]}) from error
    except (jsonpatch.JsonPatchException, JsonPointerException, TypeError) as error:
        errors.refuse(f"error decoding patch: {error}")


def strategic_merge_patch(target: Any, patch: Any, typed: Type = DEDUCED) -> Any:
    """Return ``target`` after a strategic merge patch; the type defines the merge of lists.

    Raises StatusError 400 for a bad directive.
    """
    if not isinstance(patch, dict):
        return deep_copy(patch)
    directive = patch.get(_DIRECTIVE)
    if directive == "delete":
        return {}
    if directive == "replace":
        return deep_copy({key: value for key, value in patch.items() if key != _DIRECTIVE})
    if directive not in (None, "merge"):
        errors.refuse(f"unknown patch type: {directive}")
    result = dict(target) if isinstance(target, dict) else {}
    if isinstance(retained := patch.get(_RETAIN), list):
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merge_list(typed.field_type(key), result.get(key) or [], value)
        else:
            result[key] = strategic_merge_patch(result.get(key), value, typed.field_type(key))
    _follow_directives(result, patch, typed)
    return result


def _merge_list(typed: Type, live: list[Any], patch: list[Any]) -> list[Any]:
    if typed.shape is FieldShape.SET:
        return [*live, *(value for value in patch if value not in live)]
    if typed.shape is not FieldShape.LIST or not all(isinstance(item, dict) for item in [*live, *patch]):
        return deep_copy(patch)
    if any(item.get(_DIRECTIVE) == "replace" for item in patch):
        return deep_copy([item for item in patch if _DIRECTIVE not in item])
    key, result = typed.keys[0][0], list(live)
    for item in patch:
        if key not in item:
            errors.refuse(f"map: {item} does not contain declared merge key: {key}")
        index = next((place for place, own in enumerate(result) if own.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            result = [own for own in result if own.get(key) != item[key]]
        elif index is None:
            result.append(strategic_merge_patch({}, item, typed.item or DEDUCED))
        else:
            result[index] = strategic_merge_patch(result[index], item, typed.item or DEDUCED)
    return result


def _follow_directives(result: Object, patch: Object, typed: Type) -> None:
    """Follow $deleteFromPrimitiveList and $setElementOrder; items without an order come last."""
    for directive, values in patch.items():
        kind, _, field = directive.partition("/")
        if not isinstance(items := result.get(field), list):
            continue
        if kind == _DELETE_FROM:
            result[field] = [value for value in items if value not in values]
        elif kind == _ORDER:
            keys = typed.field_type(field).keys
            names = [item.get(keys[0][0]) if keys and isinstance(item, dict) else item for item in items]
            wanted = [item.get(keys[0][0]) if keys and isinstance(item, dict) else item for item in values]
            named = [items[names.index(name)] for name in wanted if name in names]
            result[field] = [*named, *(item for item, name in zip(items, names, strict=True) if name not in wanted)]


Answer = Response | StreamResponse
Handler = Callable[[Registry, Request], Answer]
_CREATED = 201
_APPLY = "application/apply-patch+yaml"
_STRATEGIC = "application/strategic-merge-patch+json"
_PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/json-patch+json": json_patch,
    "application/merge-patch+json": merge_patch,
    _STRATEGIC: lambda obj, body: strategic_merge_patch(obj, body, type_of(obj, None).root),
}


def verb_of(request: Request) -> str:
    """Return the RBAC verb of a request."""
    match request.method, bool(request.target.name):
        case "GET", True:
            return "get"
        case "GET", False:
            return "watch" if request.flag("watch") else "list"
        case "DELETE", False:
            return "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(request.method, "")


def may_create(request: Request) -> bool:
    """Whether a write request creates a missing object."""
    return _is_apply(request) or (request.method == "PUT" and request.info.put_creates)


def handle(registry: Registry, request: Request) -> Answer:
    """Answer a request. Raises StatusError."""
    target, method = request.target, request.method
    if request.info.verbs == ("create",):
        if method != "POST" or target.name:
            raise errors.method_not_allowed()
        return answer_review(registry.store, request)
    if target.subresource in ("status", "finalize"):
        handler = _OBJECT.get(method) if method != "DELETE" else None
    elif target.subresource:
        handler = _SUBRESOURCES.get((method, target.subresource))
    else:
        handler = (_OBJECT if target.name else _COLLECTION).get(method)
    if handler is None or (not target.subresource and verb_of(request) not in request.info.verbs):
        raise errors.method_not_allowed()
    return handler(registry, request)


def _is_apply(request: Request) -> bool:
    return request.method == "PATCH" and request.content_type == _APPLY


def _get(registry: Registry, request: Request) -> Response:
    return object_response(registry.get(request.target), request)


def _list(registry: Registry, request: Request) -> Answer:
    if request.flag("watch"):
        return list_watch.start_watch(registry.store, request)
    version = list_watch.parse_resource_version(request.query.get("resourceVersion", ""))
    if (token := request.query.get("continue", "")) and version:
        errors.refuse("specifying resource version is not allowed when using continue")
    limit = request.number("limit") or 0
    page = list_watch.list_page(registry.store, request.info, list_watch.Selection.from_request(request), limit, token)
    metadata = {"resourceVersion": str(page.version)} | ({"continue": page.next} if page.next else {})
    return Response(200, render_list(page.items, request.info, output_form(request), metadata))


def _validate(request: Request, body: Any) -> Object:
    return validate_fields(body, request.info, request.query.get("fieldValidation", ""))


def _create(registry: Registry, request: Request) -> Response:
    if request.info.namespaced and not request.target.namespace:
        errors.refuse("an empty namespace may not be set during creation")
    item = registry.create(request.target, _validate(request, request.object()), request.write_options())
    return object_response(item, request, _CREATED)


def _update(registry: Registry, request: Request) -> Response:
    body = _validate(request, request.object())
    is_new = may_create(request) and not request.target.subresource and registry.is_missing(request.target)
    write = registry.create if is_new else registry.update
    return object_response(write(request.target, body, request.write_options()), request, _CREATED if is_new else 200)


def _patch(registry: Registry, request: Request) -> Response:
    if _is_apply(request):
        return _apply(registry, request)
    accepted = [kind for kind in _PATCHES if not (request.info.custom and kind == _STRATEGIC)]
    if request.content_type not in accepted:
        raise errors.unsupported_media_type(request.content_type, [*accepted, _APPLY])
    change, body = _PATCHES[request.content_type], parse_body(request.body)
    item = registry.patch(request.target, lambda obj: _validate(request, change(obj, body)), request.write_options())
    return object_response(item, request)


def _apply(registry: Registry, request: Request) -> Response:
    if not request.query.get("fieldManager"):
        errors.refuse_options("fieldManager: Required value: is required for apply patch", "PatchOptions")
    config, expected = parse_body(request.body), request.info.api_version
    version = config.get("apiVersion", "") if isinstance(config, dict) else expected
    if version != expected:
        versions = f"Specified patch version: {version}, expected: {expected}"
        errors.refuse(f"Incorrect version specified in apply patch. {versions}")
    body, options = _validate(request, config), request.write_options()
    item, is_new = registry.apply(request.target, body, options, force=request.flag("force"))
    return object_response(item, request, _CREATED if is_new else 200)


def _delete_options(request: Request) -> DeleteOptions:
    options = dict(request.object() or {})
    if policy := request.query.get("propagationPolicy"):
        options["propagationPolicy"] = policy
    if "gracePeriodSeconds" in request.query:
        options["gracePeriodSeconds"] = request.number("gracePeriodSeconds")
    if request.dry_run():
        options["dryRun"] = ["All"]
    return parse_delete_options(options)


def _delete(registry: Registry, request: Request) -> Response:
    item, is_gone = registry.delete(request.target, _delete_options(request))
    if not is_gone:
        return object_response(item, request)
    return json_response(errors.success(request.info, request.target.name, item.object["metadata"]["uid"]))


def _delete_collection(registry: Registry, request: Request) -> Response:
    options, info = _delete_options(request), request.info
    items = list_watch.list_items(registry.store, info, list_watch.Selection.from_request(request))
    for item in items:
        registry.delete(RequestInfo(info, *key_of(item.object)), options)
    metadata = {"resourceVersion": str(registry.store.version)}
    return Response(200, render_list(items, info, output_form(request), metadata))


_COLLECTION: dict[str, Handler] = {"GET": _list, "POST": _create, "DELETE": _delete_collection}
_OBJECT: dict[str, Handler] = {"GET": _get, "PUT": _update, "PATCH": _patch, "DELETE": _delete}
_SUBRESOURCES: dict[tuple[str, str], Handler] = {
    ("GET", "log"): pods.read_log,
    ("POST", "log"): pods.append_log,
    ("POST", "eviction"): pods.evict,
    ("POST", "binding"): pods.bind,
    ("GET", "exec"): pods.refuse_exec,
    ("POST", "exec"): pods.refuse_exec,
}
