"""RBAC rules as sets of permissions, and the Roles, ClusterRoles and bindings that grant them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_provision.components.objects import RBAC, manifest, rule
from gpu_provision.model.cluster import Manifest, Permission

Rule = Mapping[str, Any]  # A rule as Roles, ClusterRoles and SelfSubjectRulesReviews hold it
_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")


def permissions_of(rules: Iterable[Rule], namespace: str = "") -> Iterator[Permission]:
    """Yield everything that rules grant in a namespace, or everywhere. Raises KeyError for rules about URLs."""
    for one in rules:
        for group in one["apiGroups"]:
            for resource in one["resources"]:
                for verb in one["verbs"]:
                    for name in one.get("resourceNames") or ("",):
                        yield Permission(verb, group, resource, namespace, name)


def grants(one: Rule, wanted: Permission) -> bool:
    """Whether a rule that holds in the permission's namespace grants it."""
    names = one.get("resourceNames") or ()
    part = wanted.resource.partition("/")[2]
    alike = (wanted.resource, f"*/{part}") if part else (wanted.resource,)
    return (
        _has(one.get("verbs"), wanted.verb)
        and _has(one.get("apiGroups"), wanted.group)
        and _has(one.get("resources"), *alike)
        and (not names or wanted.name in names)
    )


def _has(given: Collection[str] | None, *wanted: str) -> bool:
    return any(one == "*" or one in wanted for one in given or ())


def rules_of(permissions: Iterable[Permission]) -> list[dict[str, Any]]:
    """Return rules, as few as may be, that grant just these permissions, all of one namespace or all of the cluster."""
    by_resource: dict[tuple[str, str], dict[str, set[str]]] = {}
    for one in permissions:
        by_resource.setdefault((one.group, one.resource), {}).setdefault(one.name, set()).add(one.verb)
    rows: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, resource), by_name in sorted(by_resource.items()):
        of_any = by_name.pop("", set())  # what holds for any name is not said again for one
        names: dict[tuple[str, ...], list[str]] = {_sort_verbs(of_any): []} if of_any else {}
        for name, verbs in sorted(by_name.items()):
            if left := verbs - of_any:
                names.setdefault(_sort_verbs(left), []).append(name)
        for ordered, named in names.items():
            rows.setdefault((group, ordered, tuple(named)), []).append(resource)
    return [rule(group, resources, verbs, names) for (group, verbs, names), resources in rows.items()]


def _sort_verbs(verbs: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(sorted(verbs), key=lambda verb: _VERBS.index(verb) if verb in _VERBS else len(_VERBS)))


def drop_cluster_wide(permissions: Iterable[Permission], granted: Collection[Permission]) -> list[Permission]:
    """Return the permissions of namespaces that are not granted in the whole cluster anyway."""
    everywhere = {*granted}
    wider = ((one, {one._replace(namespace=""), one._replace(namespace="", name="")}) for one in permissions)
    return [one for one, same in wider if not same & everywhere]


def describe(permissions: Iterable[Permission]) -> list[str]:
    """Return permissions for a reader, those alike in one line: ``get, patch roles "a", "b" in namespace x``."""
    by_namespace: dict[str, list[Permission]] = {}
    for one in permissions:
        by_namespace.setdefault(one.namespace, []).append(one)
    told = []
    for namespace, found in sorted(by_namespace.items()):
        scope = f"in namespace {namespace}" if namespace else "in the whole cluster"
        for each in rules_of(found):
            resources = ", ".join(qualified_name(each["apiGroups"][0], resource) for resource in each["resources"])
            names = ", ".join(f'"{name}"' for name in each.get("resourceNames", ()))
            told.append(f"{', '.join(each['verbs'])} {resources} {f'{names} ' if names else ''}{scope}")
    return told


def qualified_name(group: str, resource: str) -> str:
    """Return a resource as kubectl names it: ``daemonsets.apps``, ``daemonsets.apps/status``."""
    plural, slash, part = resource.partition("/")
    return f"{plural}.{group}{slash}{part}" if group else resource


ALWAYS_THERE = frozenset({"default", "kube-system"})
"""Namespaces that every cluster has; they are neither created nor deleted."""

_LABELS = {"app.kubernetes.io/name": "gpu-provision"}


@dataclass(frozen=True, slots=True)
class RbacSubject:
    """Who gets a role. ``kind`` is User, Group or ServiceAccount; only the last has a namespace."""

    kind: str
    name: str
    namespace: str = ""

    def reference(self) -> dict[str, str]:
        """Return the subject as bindings name it."""
        if self.kind == "ServiceAccount":
            return {"kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {"apiGroup": RBAC, "kind": self.kind, "name": self.name}


def roles(name: str, permissions: Iterable[Permission], subjects: Sequence[RbacSubject]) -> list[Manifest]:
    """Return namespaces, roles and, if there are subjects, bindings, in an order in which they can be applied.

    What is needed in the whole cluster is in a ClusterRole, the rest in a Role per namespace. The namespaces have no
    setting: they are there since a Role cannot be before its namespace.
    """
    wanted = sorted(set(permissions))
    of_cluster = [one for one in wanted if not one.namespace]
    own = drop_cluster_wide((one for one in wanted if one.namespace), of_cluster)
    namespaces = sorted({one.namespace for one in own})
    found = [manifest(("v1", "Namespace"), namespace) for namespace in namespaces if namespace not in ALWAYS_THERE]
    found += _bind_role("ClusterRole", name, "", of_cluster, subjects)
    for namespace in namespaces:
        found += _bind_role("Role", name, namespace, [one for one in own if one.namespace == namespace], subjects)
    return found


def _bind_role(
    kind: str, name: str, namespace: str, permissions: Iterable[Permission], subjects: Sequence[RbacSubject]
) -> list[Manifest]:
    common: dict[str, Any] = {"namespace": namespace, "labels": _LABELS}
    role = manifest((f"{RBAC}/v1", kind), name, **common, rules=rules_of(permissions))
    reference = {"apiGroup": RBAC, "kind": kind, "name": name}
    given = [subject.reference() for subject in subjects]
    binding = manifest((f"{RBAC}/v1", f"{kind}Binding"), name, **common, roleRef=reference, subjects=given)
    return [role, binding] if subjects else [role]
