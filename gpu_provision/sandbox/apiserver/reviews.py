"""Objects that are questions: who am I, may I, give me a token. Nothing of them is kept."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.binding import bound
from gpu_provision.sandbox.apiserver.calls import Call, Reply, reply
from gpu_provision.sandbox.apiserver.objects import at, stamp
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.status import bad_request, no_such_path, success
from gpu_provision.sandbox.apiserver.targets import Target

_CREATED = 201
_EVERYTHING = "the sandbox grants everything to every authenticated user"
_GROUPS = ["system:masters", "system:authenticated"]
_TOKEN_SECONDS = 3600


def _allowed(_: Call, body: Object) -> Object:
    return {**body, "status": {"allowed": True, "reason": _EVERYTHING}}


def _rules(_: Call, body: Object) -> Object:
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    urls = {"verbs": ["*"], "nonResourceURLs": ["*"]}
    status = {
        "resourceRules": [everything],
        "nonResourceRules": [urls],
        "incomplete": True,  # so that kubectl prints the remark
        "evaluationError": _EVERYTHING,
    }
    return {**body, "status": status}


def _user(call: Call) -> Object:
    return {"username": call.user, "uid": call.user, "groups": _GROUPS}


def _self(call: Call, body: Object) -> Object:
    return {**body, "status": {"userInfo": _user(call)}}


def _token(call: Call, body: Object) -> Object:
    return {**body, "status": {"authenticated": True, "user": _user(call)}}


_ANSWERS: dict[str, Callable[[Call, Object], Object]] = {
    "selfsubjectaccessreviews": _allowed,
    "subjectaccessreviews": _allowed,
    "localsubjectaccessreviews": _allowed,
    "selfsubjectrulesreviews": _rules,
    "selfsubjectreviews": _self,
    "tokenreviews": _token,
}


def answer(registry: Registry, call: Call) -> Reply:
    """Answer a question that is posted as an object. Raises StatusError."""
    body = call.object()
    if not isinstance(body, dict):
        message = "the body is no object"
        raise bad_request(message)
    if call.info.plural == "bindings":
        return _bind(registry, call, body)
    if call.info.plural not in _ANSWERS:
        raise no_such_path()
    head = {"kind": call.info.kind, "apiVersion": call.info.api_version, "metadata": {}}
    return reply(_ANSWERS[call.info.plural](call, {**head, **body}), _CREATED)


def _bind(registry: Registry, call: Call, body: Object) -> Reply:
    pods = registry.catalog.find("", "v1", "pods")
    name, node = at(body, "metadata", "name"), at(body, "target", "name")
    if pods is None or not name or not node:
        message = "a Binding names a pod and its target"
        raise bad_request(message)
    target = Target(pods, call.target.namespace, name, "binding")
    item = registry.change(target, lambda pod: bound(pod, node, pods), call.write_options())
    return reply(success(pods, name, item.object["metadata"]["uid"]), _CREATED)


def request_token(registry: Registry, call: Call) -> Reply:
    """Answer with a random token, which nobody accepts: the sandbox's pods are no processes."""
    registry.item(call.target)
    seconds = at(call.details() or {}, "spec", "expirationSeconds") or _TOKEN_SECONDS
    expires = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=int(seconds))
    status = {"token": secrets.token_urlsafe(32), "expirationTimestamp": stamp(expires)}
    head = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}}
    return reply({**head, "spec": {"expirationSeconds": int(seconds)}, "status": status}, _CREATED)
