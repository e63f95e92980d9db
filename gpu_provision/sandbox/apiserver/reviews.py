"""Objects that are questions: who am I, may I, give me a token. Nothing of them is kept."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.auth import Attempt
from gpu_provision.sandbox.apiserver.authorizer import Authorizer, User, may_url, user_of
from gpu_provision.sandbox.apiserver.calls import Call, Reply, reply
from gpu_provision.sandbox.apiserver.objects import at, stamp
from gpu_provision.sandbox.apiserver.pods import bound
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.status import bad_request, no_such_path, success
from gpu_provision.sandbox.apiserver.targets import Target

_CREATED = 201
_TOKEN_SECONDS = 3600


def _self_may(registry: Registry, call: Call, body: Object) -> Object:
    return _may(registry, user_of(call.user), body)


def _somebody_may(registry: Registry, _: Call, body: Object) -> Object:
    name, groups = at(body, "spec", "user") or "", at(body, "spec", "groups") or ()
    return _may(registry, User(name, tuple(groups)), body)


def _may(registry: Registry, user: User, body: Object) -> Object:
    authorizer, wanted = Authorizer(registry.store), at(body, "spec", "resourceAttributes")
    if isinstance(wanted, dict):
        reason = authorizer.reason(user, _attempt(user, wanted))
    else:
        url: Object = at(body, "spec", "nonResourceAttributes") or {}
        granted = may_url(user, authorizer.grants(user, ""), url.get("verb", ""), url.get("path", ""))
        reason = "" if granted else None
    told = {"reason": reason} if reason else {}
    return {**body, "status": {"allowed": reason is not None, **told}}


def _attempt(user: User, wanted: Object) -> Attempt:
    part = wanted.get("subresource", "")
    resource = "/".join(filter(None, (wanted.get("resource", ""), part)))
    named = (wanted.get(key, "") for key in ("group", "namespace", "name"))
    group, namespace, name = named
    return Attempt(user.name, wanted.get("verb", ""), group, resource, namespace, name)


def _rules(registry: Registry, call: Call, body: Object) -> Object:
    namespace = at(body, "spec", "namespace")
    if not namespace:
        message = "no namespace on request"
        raise bad_request(message)
    granted = [grant.rule for grant in Authorizer(registry.store).grants(user_of(call.user), namespace)]
    status = {
        "resourceRules": [_part(rule, _OF_RESOURCES) for rule in granted if rule.get("resources")],
        "nonResourceRules": [_part(rule, _OF_URLS) for rule in granted if rule.get("nonResourceURLs")],
        "incomplete": False,
    }
    return {**body, "status": status}


def _part(rule: Object, keys: tuple[str, ...]) -> Object:
    return {key: rule[key] for key in keys if key in rule}


def _user(call: Call) -> Object:
    return {"username": call.user, "uid": call.user, "groups": list(user_of(call.user).groups)}


def _self(_: Registry, call: Call, body: Object) -> Object:
    return {**body, "status": {"userInfo": _user(call)}}


def _token(_: Registry, call: Call, body: Object) -> Object:
    return {**body, "status": {"authenticated": True, "user": _user(call)}}


_OF_RESOURCES = ("verbs", "apiGroups", "resources", "resourceNames")
_OF_URLS = ("verbs", "nonResourceURLs")
_ANSWERS: dict[str, Callable[[Registry, Call, Object], Object]] = {
    "selfsubjectaccessreviews": _self_may,
    "subjectaccessreviews": _somebody_may,
    "localsubjectaccessreviews": _somebody_may,
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
    return reply(_ANSWERS[call.info.plural](registry, call, {**head, **body}), _CREATED)


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
