"""Who may do what: RBAC over the roles and bindings that the cluster keeps.

The administrator is in ``system:masters`` and may do everything. Everybody else may do what bindings grant to them, to
``system:authenticated`` or, for tokens of service accounts, to the groups of those. Aggregated ClusterRoles stay as
they were written, since no controller fills them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.auth import ADMIN, ANONYMOUS, Attempt, forbidden
from gpu_provision.sandbox.apiserver.store import Store

GROUP = "rbac.authorization.k8s.io"
_MASTERS, _AUTHENTICATED = "system:masters", "system:authenticated"
_ACCOUNT = "system:serviceaccount:"


class User(NamedTuple):
    """Somebody who asks, and the groups that they are in."""

    name: str
    groups: tuple[str, ...]

    @property
    def is_master(self) -> bool:
        """Whether nothing is forbidden to them."""
        return _MASTERS in self.groups


def user_of(name: str) -> User:
    """Return a user of this server with the groups that follow from the name."""
    if name == ADMIN:
        return User(name, (_MASTERS, _AUTHENTICATED))
    if name == ANONYMOUS:
        return User(name, ("system:unauthenticated",))
    if not name.startswith(_ACCOUNT):
        return User(name, (_AUTHENTICATED,))
    namespace = name.removeprefix(_ACCOUNT).partition(":")[0]
    return User(name, ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", _AUTHENTICATED))


@dataclass(frozen=True, slots=True)
class Grant:
    """One rule of a role, and the binding that makes it somebody's."""

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
            yield from self._granted(item.object, user, "")
        if namespace:
            for item in self._store.select(f"{GROUP}/rolebindings", namespace):
                yield from self._granted(item.object, user, namespace)

    def _granted(self, binding: Object, user: User, namespace: str) -> Iterator[Grant]:
        subject = next((one for one in binding.get("subjects") or () if _means(one, user, namespace)), None)
        if subject is None:
            return
        role, name = binding["roleRef"], binding["metadata"]["name"]
        bound = f"{name}/{namespace}" if namespace else name
        owner = subject["name"] if subject["kind"] != "ServiceAccount" else f"{subject['name']}/{subject['namespace']}"
        reason = f'RBAC: allowed by {_kind(namespace)} "{bound}" of {role["kind"]} "{role["name"]}" to '
        for rule in self.rules_of(role, namespace) or ():
            yield Grant(rule, f'{reason}{subject["kind"]} "{owner}"')

    def rules_of(self, role: Object, namespace: str) -> list[Object] | None:
        """Return the rules that a ``roleRef`` names; None if there is no such role."""
        of_namespace = role["kind"] == "Role"
        storage = f"{GROUP}/{'roles' if of_namespace else 'clusterroles'}"
        item = self._store.get(storage, role["name"], namespace if of_namespace else "")
        return list(item.object.get("rules") or ()) if item else None

    def reason(self, user: User, attempt: Attempt) -> str | None:
        """Return why a user may do something, which may be no words at all; None if they may not."""
        if user.is_master:
            return ""
        found = (grant.reason for grant in self.grants(user, attempt.namespace) if covers(grant.rule, attempt))
        return next(found, None)

    def check(self, attempt: Attempt) -> None:
        """Raise StatusError 403 unless the user may do it."""
        if self.reason(user_of(attempt.user), attempt) is None:
            raise forbidden(attempt)


def _kind(namespace: str) -> str:
    return "RoleBinding" if namespace else "ClusterRoleBinding"


def _means(subject: Mapping[str, str], user: User, namespace: str) -> bool:
    match subject.get("kind"):
        case "User":
            return subject["name"] == user.name
        case "Group":
            return subject["name"] in user.groups
        case "ServiceAccount":
            return user.name == f"{_ACCOUNT}{subject.get('namespace') or namespace}:{subject['name']}"
    return False


def covers(rule: Object, attempt: Attempt) -> bool:
    """Whether a rule of a role grants an attempt."""
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("verbs"), attempt.verb)
        and _has(rule.get("apiGroups"), attempt.group)
        and _has_resource(rule.get("resources"), attempt.resource)
        and (not names or attempt.name in names)
    )


def _has(given: Iterable[str] | None, wanted: str) -> bool:
    return any(one in ("*", wanted) for one in given or ())


def _has_resource(given: Iterable[str] | None, wanted: str) -> bool:
    of_any = f"*/{wanted.partition('/')[2]}" if "/" in wanted else wanted
    return any(one in ("*", wanted, of_any) for one in given or ())


def atoms(rule: Object) -> Iterator[tuple[Object, Attempt]]:
    """Yield the parts of a rule that grant one verb on one resource, each as a rule and as an attempt."""
    for group in rule.get("apiGroups") or ():
        for resource in rule.get("resources") or ():
            for verb in rule.get("verbs") or ():
                for name in rule.get("resourceNames") or ("",):
                    part = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                    named = {**part, "resourceNames": [name]} if name else part
                    yield named, Attempt("", verb, group, resource, "", name)


def may_url(user: User, grants: Iterable[Grant], verb: str, path: str) -> bool:
    """Whether a user may ask for a path that is no resource."""
    rules = [grant.rule for grant in grants]
    return user.is_master or any(
        _has(rule.get("verbs"), verb) and any(_fits(url, path) for url in rule.get("nonResourceURLs") or ())
        for rule in rules
    )


def _fits(url: str, path: str) -> bool:
    return url in ("*", path) or (url.endswith("*") and path.startswith(url.removesuffix("*")))
