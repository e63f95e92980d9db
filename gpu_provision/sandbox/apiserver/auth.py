"""Who a user is and what they may do: certificates, bearer tokens, kubeconfigs; RBAC and access reviews."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import secrets
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import trustme
import yaml

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import StatusError, bad_request
from gpu_provision.sandbox.apiserver.request import Request, Response, json_response
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.objects import at
from gpu_provision.sandbox.state import replace_file

ADMIN, ANONYMOUS = "sandbox-admin", "system:anonymous"
_ORGANIZATION = "gpu-provision sandbox"
_NAMES = ("localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_LIFETIME = dt.timedelta(days=3650)


class Tokens:
    """The file ``tokens.json``: token -> user name; read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        """Make the file with one token for the administrator if it is not there."""
        self._path, self._users, self._read_at = path, dict[str, str](), -1
        if not path.exists():
            self.add(ADMIN)

    def users(self) -> dict[str, str]:
        """Return user names by token; while the file cannot be read, those of before."""
        changed_at = self._path.stat().st_mtime_ns if self._path.exists() else 0
        if changed_at != self._read_at:
            self._read_at = changed_at
            with contextlib.suppress(OSError, ValueError):
                self._users = dict(json.loads(self._path.read_text()))
        return self._users

    def token(self, user: str = ADMIN) -> str:
        """Return a user's token."""
        return next(token for token, name in self.users().items() if name == user)

    def add(self, user: str) -> str:
        """Give a user a new token. Only the owner may read the file, which is replaced in one step."""
        token = secrets.token_urlsafe(32)
        replace_file(self._path, json.dumps({**self.users(), token: user}, indent=1), private=True)
        return token

    def ensure(self, user: str) -> str:
        """Return a user's token, a new one if they have none."""
        return self.token(user) if user in self.users().values() else self.add(user)

    def authenticate(self, header: str) -> str:
        """Return the user of an Authorization header, the anonymous one without a token. Raises StatusError 401."""
        scheme, _, token = header.strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return ANONYMOUS
        user = self.users().get(token.strip())
        if user is None:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        return user


def ensure_certificates(directory: Path, host: str) -> Path:
    """Make the certificates if they are missing; return the path of the authority's."""
    authority, server = directory / "ca.crt", directory / "server.pem"
    if authority.exists() and server.exists():
        return authority
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    maker, names = trustme.CA(organization_name=_ORGANIZATION), dict.fromkeys((*_NAMES, host))
    made = maker.issue_cert(*names, organization_name=_ORGANIZATION, not_after=dt.datetime.now(dt.UTC) + _LIFETIME)
    server.touch(mode=0o600)
    made.private_key_and_cert_chain_pem.write_to_path(str(server))
    maker.cert_pem.write_to_path(str(authority))
    return authority


def server_context(directory: Path) -> ssl.SSLContext:
    """Return the TLS settings of the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(directory / "server.pem")
    return context


def write_kubeconfig(  # noqa: PLR0913 - the parts of the file
    path: Path, *, url: str, authority: Path, token: str, context: str, user: str
) -> None:
    """Write a kubeconfig that only its owner may read, in one step, so that no reader sees half of it."""
    data = base64.b64encode(authority.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": url, "certificate-authority-data": data}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
        "current-context": context,
    }
    replace_file(path, yaml.safe_dump(config, sort_keys=False), private=True)


GROUP = "rbac.authorization.k8s.io"
_MASTERS, _AUTHENTICATED = "system:masters", "system:authenticated"
_ACCOUNT = "system:serviceaccount:"
_CREATED = 201


# What the garbage collector changes in an object, and the bookkeeping of who wrote what.
_VOLATILE = frozenset({"finalizers", "managedFields", "ownerReferences", "resourceVersion"})


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """What a request wants to do."""

    user: str
    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""


def forbidden_path(user: str, method: str, path: str) -> StatusError:
    """403 for a path that is no resource."""
    return StatusError(403, "Forbidden", f'forbidden: User "{user}" cannot {method.lower()} path "{path}"')


def _forbidden(access: AccessRequest) -> StatusError:
    plural = access.resource.partition("/")[0]
    qualified = f"{plural}.{access.group}" if access.group else plural
    subject = f'{qualified} "{access.name}"' if access.name else qualified
    scope = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
    message = (
        f'{subject} is forbidden: User "{access.user}" cannot {access.verb} resource "{access.resource}" '
        f'in API group "{access.group}" {scope}'
    )
    details = {"name": access.name, "group": access.group, "kind": plural}
    return StatusError(403, "Forbidden", message, details={key: value for key, value in details.items() if value})


class User(NamedTuple):
    """A user, and the groups that they are in."""

    name: str
    groups: tuple[str, ...]

    @classmethod
    def from_name(cls, name: str) -> User:
        """Return a user of this server with the groups that follow from the name."""
        if name == ADMIN:
            return cls(name, (_MASTERS, _AUTHENTICATED))
        if name == ANONYMOUS:
            return cls(name, ("system:unauthenticated",))
        if not name.startswith(_ACCOUNT):
            return cls(name, (_AUTHENTICATED,))
        namespace = name.removeprefix(_ACCOUNT).partition(":")[0]
        return cls(name, ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", _AUTHENTICATED))

    @property
    def is_master(self) -> bool:
        """Whether nothing is forbidden to them."""
        return _MASTERS in self.groups


class Grant(NamedTuple):
    """One rule of a role, and the binding that grants it to a user."""

    rule: Object
    reason: str


class Authorizer:
    """Looks roles and bindings up for every question, so that a change counts at once."""

    def __init__(self, store: Store) -> None:
        """``store`` holds the roles and bindings."""
        self._store = store

    def grants(self, user: User, namespace: str) -> Iterator[Grant]:
        """Yield what a user may do in a namespace, or everywhere if it is empty."""
        for item in self._store.select(f"{GROUP}/clusterrolebindings"):
            yield from self._grants_of(item.object, user, "")
        if namespace:
            for item in self._store.select(f"{GROUP}/rolebindings", namespace):
                yield from self._grants_of(item.object, user, namespace)

    def _grants_of(self, binding: Object, user: User, namespace: str) -> Iterator[Grant]:
        subject = next((one for one in binding.get("subjects") or () if _is_subject(one, user, namespace)), None)
        if subject is None:
            return
        role, name = binding["roleRef"], binding["metadata"]["name"]
        kind, bound = ("RoleBinding", f"{name}/{namespace}") if namespace else ("ClusterRoleBinding", name)
        owner = subject["name"] if subject["kind"] != "ServiceAccount" else f"{subject['name']}/{subject['namespace']}"
        source = f'RBAC: allowed by {kind} "{bound}" of {role["kind"]} "{role["name"]}"'
        for rule in self.rules_of(role, namespace) or ():
            yield Grant(rule, f'{source} to {subject["kind"]} "{owner}"')

    def rules_of(self, role: Object, namespace: str) -> list[Object] | None:
        """Return the rules that a ``roleRef`` names; None if there is no such role."""
        storage, namespace = (f"{GROUP}/roles", namespace) if role["kind"] == "Role" else (f"{GROUP}/clusterroles", "")
        item = self._store.get(storage, role["name"], namespace)
        return list(item.object.get("rules") or ()) if item else None

    def find_reason(self, user: User, access: AccessRequest) -> str | None:
        """Return why a user may do something, which may be no words at all; None if they may not."""
        if user.is_master:
            return ""
        found = (grant.reason for grant in self.grants(user, access.namespace) if _covers(grant.rule, access))
        return next(found, None)

    def check(self, access: AccessRequest) -> None:
        """Raise StatusError 403 unless the user may do it."""
        if self.find_reason(User.from_name(access.user), access) is None:
            raise _forbidden(access)

    def may_access_path(self, user: User, verb: str, path: str) -> bool:
        """Say whether a user may ask for a path that is no resource."""
        return user.is_master or any(
            _has(rule.get("verbs"), verb) and any(_path_fits(url, path) for url in rule.get("nonResourceURLs") or ())
            for rule, _ in self.grants(user, "")
        )

    def check_escalation(self, request: Request, new: Object) -> None:
        """Refuse (403) a role or binding that grants more than its writer holds; 404 if a binding's role is missing.

        ``new`` is what the request would write.
        """
        user, info, namespace = User.from_name(request.user), request.info, request.target.namespace
        name = new["metadata"]["name"]
        before = self._store.get(info.storage, name, namespace)
        if before is not None and _lasting_part(new) == _lasting_part(before.object):
            return
        if "roleRef" in new:
            plural = "roles" if new["roleRef"]["kind"] == "Role" else "clusterroles"
            waiver = AccessRequest(user.name, "bind", GROUP, plural, namespace, new["roleRef"]["name"])
        else:
            waiver = AccessRequest(user.name, "escalate", GROUP, info.plural, namespace, name)
        if self.find_reason(user, waiver) is not None:
            return
        rules = self.rules_of(new["roleRef"], namespace) if "roleRef" in new else list(new.get("rules") or ())
        if rules is None:
            details = {"name": waiver.name, "group": GROUP, "kind": waiver.resource}
            message = f'{waiver.resource}.{GROUP} "{waiver.name}" not found'
            raise StatusError(404, "NotFound", message, details=details)
        if before is not None and "rules" in new and rules == list(before.object.get("rules") or ()):
            return
        held = [grant.rule for grant in self.grants(user, namespace)]
        missing = [
            access
            for rule in rules
            for access in _split_rule(rule, user.name)
            if not any(_covers(own, access) for own in held)
        ]
        if missing:
            groups = " ".join(f'"{group}"' for group in user.groups)
            message = (
                f'{info.qualified} "{name}" is forbidden: user "{user.name}" (groups=[{groups}]) is attempting to '
                f"grant RBAC permissions not currently held:\n" + "\n".join(_describe(missing))
            )
            raise StatusError(403, "Forbidden", message, details={"name": name, "group": GROUP, "kind": info.plural})


def needs_escalation_check(request: Request) -> bool:
    """Say whether a request may grant permissions; an administrator's does not matter."""
    is_write = request.method in ("POST", "PUT", "PATCH")
    return is_write and request.info.group == GROUP and not User.from_name(request.user).is_master


def _lasting_part(item: Object) -> Object:
    return {**item, "metadata": {key: value for key, value in item["metadata"].items() if key not in _VOLATILE}}


def _is_subject(subject: Mapping[str, str], user: User, namespace: str) -> bool:
    match subject.get("kind"):
        case "User":
            return subject["name"] == user.name
        case "Group":
            return subject["name"] in user.groups
        case "ServiceAccount":
            return user.name == f"{_ACCOUNT}{subject.get('namespace') or namespace}:{subject['name']}"
    return False


def _covers(rule: Object, access: AccessRequest) -> bool:
    names, any_resource = rule.get("resourceNames") or (), f"*/{access.resource.partition('/')[2]}"
    return (
        _has(rule.get("verbs"), access.verb)
        and _has(rule.get("apiGroups"), access.group)
        and (_has(rule.get("resources"), access.resource) or any_resource in (rule.get("resources") or ()))
        and (not names or access.name in names)
    )


def _has(given: Iterable[str] | None, wanted: str) -> bool:
    return any(one in ("*", wanted) for one in given or ())


def _path_fits(url: str, path: str) -> bool:
    return url in ("*", path) or (url.endswith("*") and path.startswith(url.removesuffix("*")))


def _split_rule(rule: Object, user: str) -> Iterator[AccessRequest]:
    """Yield the parts of a rule that grant one verb on one resource."""
    for group in rule.get("apiGroups") or ():
        for resource in rule.get("resources") or ():
            for verb in rule.get("verbs") or ():
                for name in rule.get("resourceNames") or ("",):
                    yield AccessRequest(user, verb, group, resource, "", name)


def _describe(missing: list[AccessRequest]) -> Iterator[str]:
    """Write permissions as the real server does; those that differ in the verb only stand in one line."""
    merged: dict[tuple[str, str, str], list[str]] = {}
    for access in missing:
        merged.setdefault((access.group, access.resource, access.name), []).append(access.verb)
    for (group, resource, name), verbs in sorted(merged.items()):
        names = f', ResourceNames:["{name}"]' if name else ""
        listed = ", ".join(f'"{verb}"' for verb in verbs)
        yield f'{{APIGroups:["{group}"], Resources:["{resource}"]{names}, Verbs:[{listed}]}}'


def answer_review(store: Store, request: Request) -> Response:
    """Answer a question that is posted as an object, of which nothing is kept. Raises StatusError."""
    body = request.object()
    if not isinstance(body, dict):
        message = "the body is no object"
        raise bad_request(message)
    user, authorizer = User.from_name(request.user), Authorizer(store)
    match request.info.plural:
        case "selfsubjectreviews":
            status: Object = {"userInfo": {"username": user.name, "uid": user.name, "groups": list(user.groups)}}
        case "selfsubjectrulesreviews":
            status = _list_rules(authorizer, user, at(body, "spec", "namespace"))
        case "subjectaccessreviews":
            subject = User(at(body, "spec", "user") or "", tuple(at(body, "spec", "groups") or ()))
            status = _review_access(authorizer, subject, body)
        case _:
            status = _review_access(authorizer, user, body)
    head = {"kind": request.info.kind, "apiVersion": request.info.api_version, "metadata": {}}
    return json_response({**head, **body, "status": status}, _CREATED)


def _review_access(authorizer: Authorizer, user: User, body: Object) -> Object:
    wanted, path = at(body, "spec", "resourceAttributes"), at(body, "spec", "nonResourceAttributes") or {}
    if isinstance(wanted, dict):
        resource = "/".join(filter(None, (wanted.get("resource"), wanted.get("subresource"))))
        group, namespace, name = (wanted.get(key, "") for key in ("group", "namespace", "name"))
        access = AccessRequest(user.name, wanted.get("verb", ""), group, resource, namespace, name)
        reason = authorizer.find_reason(user, access)
    else:
        reason = "" if authorizer.may_access_path(user, path.get("verb", ""), path.get("path", "")) else None
    return {"allowed": reason is not None} | ({"reason": reason} if reason else {})


def _list_rules(authorizer: Authorizer, user: User, namespace: str | None) -> Object:
    if not namespace:
        message = "no namespace on request"
        raise bad_request(message)
    rules = [grant.rule for grant in authorizer.grants(user, namespace)]
    of_resources, of_paths = ("verbs", "apiGroups", "resources", "resourceNames"), ("verbs", "nonResourceURLs")
    return {
        "resourceRules": [_select_keys(rule, of_resources) for rule in rules if rule.get("resources")],
        "nonResourceRules": [_select_keys(rule, of_paths) for rule in rules if rule.get("nonResourceURLs")],
        "incomplete": False,
    }


def _select_keys(rule: Object, keys: tuple[str, ...]) -> Object:
    return {key: rule[key] for key in keys if key in rule}
