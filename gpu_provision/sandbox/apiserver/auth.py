"""Authentication and authorization: certificates, bearer tokens, kubeconfigs; RBAC and access reviews."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import trustme
import yaml

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import StatusError, refuse
from gpu_provision.sandbox.apiserver.request import Request, Response, json_response
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.objects import value_at
from gpu_provision.sandbox.state import replace_file

ADMIN, ANONYMOUS = "sandbox-admin", "system:anonymous"
_ORGANIZATION = "gpu-provision sandbox"
_NAMES = ("localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_LIFETIME = dt.timedelta(days=3650)
GROUP = "rbac.authorization.k8s.io"
_MASTERS, _AUTHENTICATED = "system:masters", "system:authenticated"
_ACCOUNT = "system:serviceaccount:"
_CREATED = 201
# Metadata that garbage collector and field managers change.
_VOLATILE = frozenset({"finalizers", "managedFields", "ownerReferences", "resourceVersion"})


class Tokens:
    """The file ``tokens.json``: token -> user name; read again after each change."""

    def __init__(self, path: Path) -> None:
        """Create the file with a token of the administrator if it is missing."""
        self._path, self._users, self._read_at = path, dict[str, str](), -1
        if not path.exists():
            self.add(ADMIN)

    def users(self) -> dict[str, str]:
        """Return user names by token; the previous ones while the file is unreadable."""
        changed_at = self._path.stat().st_mtime_ns if self._path.exists() else 0
        if changed_at != self._read_at:
            self._read_at = changed_at
            with contextlib.suppress(OSError, ValueError):
                self._users = dict(json.loads(self._path.read_text()))
        return self._users

    def token(self, user: str = ADMIN) -> str:
        """Return a user's token; create a missing one."""
        return next((token for token, name in self.users().items() if name == user), None) or self.add(user)

    def add(self, user: str) -> str:
        """Create a token for a user. Only the owner may read the file, which is replaced atomically."""
        token = secrets.token_urlsafe(32)
        replace_file(self._path, json.dumps({**self.users(), token: user}, indent=1), private=True)
        return token

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
    """Create missing certificates; return the path of the CA certificate."""
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


def write_kubeconfig(  # noqa: PLR0913 - the parts of the file
    path: Path, *, url: str, authority: Path, token: str, context: str, user: str
) -> None:
    """Write a kubeconfig atomically; only its owner may read it."""
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


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """The verb and the object of a request, for RBAC."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""


def groups_of(user: str) -> tuple[str, ...]:
    """Return the groups of a user, which follow from the name."""
    if user == ADMIN:
        return _MASTERS, _AUTHENTICATED
    if user == ANONYMOUS:
        return ("system:unauthenticated",)
    if not user.startswith(_ACCOUNT):
        return (_AUTHENTICATED,)
    namespace = user.removeprefix(_ACCOUNT).partition(":")[0]
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}", _AUTHENTICATED


class Authorizer:
    """RBAC for one user: each check reads roles and bindings again, so that changes take effect at once.

    The group ``system:masters`` may do everything, others what bindings grant to user or group.
    Aggregated ClusterRoles keep their written rules, since no controller fills them.
    """

    def __init__(self, store: Store, user: str) -> None:
        """``store`` has the roles and bindings."""
        self._store, self._user, self._groups = store, user, groups_of(user)
        self.is_master = _MASTERS in self._groups

    def rules(self, namespace: str) -> Iterator[Object]:
        """Yield the rules that apply in a namespace, or cluster-wide if it is empty."""
        bindings = [("", item.object) for item in self._store.select(f"{GROUP}/clusterrolebindings")]
        if namespace:
            bindings += [(namespace, item.object) for item in self._store.select(f"{GROUP}/rolebindings", namespace)]
        for scope, binding in bindings:
            if any(self._is_subject(subject, scope) for subject in binding.get("subjects") or ()):
                yield from self._rules_of(binding["roleRef"], scope) or ()

    def _is_subject(self, subject: Object, namespace: str) -> bool:
        match subject.get("kind"):
            case "User":
                return bool(subject["name"] == self._user)
            case "Group":
                return subject["name"] in self._groups
            case "ServiceAccount":
                return self._user == f"{_ACCOUNT}{subject.get('namespace') or namespace}:{subject['name']}"
        return False

    def _rules_of(self, role: Object, namespace: str) -> list[Object] | None:
        """Return the rules of a ``roleRef``; None if the role is missing."""
        storage, namespace = (f"{GROUP}/roles", namespace) if role["kind"] == "Role" else (f"{GROUP}/clusterroles", "")
        item = self._store.get(storage, role["name"], namespace)
        return list(item.object.get("rules") or ()) if item else None

    def is_allowed(self, access: AccessRequest) -> bool:
        """Whether the user may make a request."""
        return self.is_master or any(_covers(rule, access) for rule in self.rules(access.namespace))

    def is_path_allowed(self, verb: str, path: str) -> bool:
        """Whether the user may request a non-resource path; a rule may end in a star."""
        return self.is_master or any(
            _has(rule.get("verbs"), verb) and any(fnmatchcase(path, url) for url in rule.get("nonResourceURLs") or ())
            for rule in self.rules("")
        )

    def check(self, access: AccessRequest) -> None:
        """Raise StatusError 403 unless the user may make a request."""
        if self.is_allowed(access):
            return
        plural = access.resource.partition("/")[0]
        qualified = f"{plural}.{access.group}" if access.group else plural
        subject = f'{qualified} "{access.name}"' if access.name else qualified
        scope = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
        message = (
            f'{subject} is forbidden: User "{self._user}" cannot {access.verb} resource "{access.resource}" '
            f'in API group "{access.group}" {scope}'
        )
        details = {"kind": plural} | {key: text for key in ("name", "group") if (text := getattr(access, key))}
        raise StatusError(403, "Forbidden", message, details=details)

    def check_escalation(self, request: Request, new: Object) -> None:
        """Refuse (403) a role or binding that grants more than its writer holds; 404 if a binding's role is missing.

        ``new`` is what the request would write.
        """
        info, namespace, name = request.info, request.target.namespace, new["metadata"]["name"]
        before = self._store.get(info.storage, name, namespace)
        if before is not None and _without_volatile_fields(new) == _without_volatile_fields(before.object):
            return
        role = new.get("roleRef")
        if role:
            plural = "roles" if role["kind"] == "Role" else "clusterroles"
            waiver = AccessRequest("bind", GROUP, plural, namespace, role["name"])
        else:
            waiver = AccessRequest("escalate", GROUP, info.plural, namespace, name)
        if self.is_allowed(waiver):
            return
        rules = self._rules_of(role, namespace) if role else list(new.get("rules") or ())
        if rules is None:
            message = f'{waiver.resource}.{GROUP} "{waiver.name}" not found'
            details = {"name": waiver.name, "group": GROUP, "kind": waiver.resource}
            raise StatusError(404, "NotFound", message, details=details)
        if before is not None and not role and rules == list(before.object.get("rules") or ()):
            return
        held = list(self.rules(namespace))
        parts = (access for rule in rules for access in _split_rule(rule))
        if missing := [access for access in parts if not any(_covers(own, access) for own in held)]:
            groups = " ".join(f'"{group}"' for group in self._groups)
            message = (
                f'{info.qualified_name} "{name}" is forbidden: user "{self._user}" (groups=[{groups}]) is attempting '
                f"to grant RBAC permissions not currently held:\n" + "\n".join(map(_describe_rule, missing))
            )
            raise StatusError(403, "Forbidden", message, details={"name": name, "group": GROUP, "kind": info.plural})


def _without_volatile_fields(item: Object) -> Object:
    return {**item, "metadata": {key: value for key, value in item["metadata"].items() if key not in _VOLATILE}}


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


def _split_rule(rule: Object) -> Iterator[AccessRequest]:
    parts = (rule.get(part) or () for part in ("apiGroups", "resources", "verbs"))
    for group, resource, verb, name in product(*parts, rule.get("resourceNames") or ("",)):
        yield AccessRequest(verb, group, resource, "", name)


def _describe_rule(access: AccessRequest) -> str:
    names = f', ResourceNames:["{access.name}"]' if access.name else ""
    return f'{{APIGroups:["{access.group}"], Resources:["{access.resource}"]{names}, Verbs:["{access.verb}"]}}'


def answer_review(store: Store, request: Request) -> Response:
    """Answer an access review, which is not stored. Raises StatusError."""
    body, authorizer = request.object(), Authorizer(store, request.user)
    if not isinstance(body, dict):
        refuse("the body is no object")
    wanted, path = value_at(body, "spec", "resourceAttributes"), value_at(body, "spec", "nonResourceAttributes") or {}
    match request.info.plural:
        case "selfsubjectreviews":
            names = {"username": request.user, "uid": request.user, "groups": list(groups_of(request.user))}
            status: Object = {"userInfo": names}
        case "selfsubjectrulesreviews":
            status = _list_rules(authorizer, value_at(body, "spec", "namespace"))
        case _:
            if isinstance(wanted, dict):
                resource = "/".join(filter(None, (wanted.get("resource"), wanted.get("subresource"))))
                group, namespace, name = (wanted.get(key, "") for key in ("group", "namespace", "name"))
                access = AccessRequest(wanted.get("verb", ""), group, resource, namespace, name)
                status = {"allowed": authorizer.is_allowed(access)}
            else:
                status = {"allowed": authorizer.is_path_allowed(path.get("verb", ""), path.get("path", ""))}
    head = {"kind": request.info.kind, "apiVersion": request.info.api_version, "metadata": {}}
    return json_response({**head, **body, "status": status}, _CREATED)


def _list_rules(authorizer: Authorizer, namespace: str | None) -> Object:
    if not namespace:
        refuse("no namespace on request")
    rules = list(authorizer.rules(namespace))
    shown = {
        kind: [{key: rule[key] for key in keys if key in rule} for rule in rules if rule.get(keys[1])]
        for kind, keys in (
            ("resourceRules", ("verbs", "resources", "apiGroups", "resourceNames")),
            ("nonResourceRules", ("verbs", "nonResourceURLs")),
        )
    }
    return {**shown, "incomplete": False}
