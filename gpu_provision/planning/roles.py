"""Permissions and somebody who is to have them -> Roles, a ClusterRole and bindings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_provision.components.objects import RBAC, manifest
from gpu_provision.model.access import Permission
from gpu_provision.model.cluster import Manifest
from gpu_provision.planning.rules import rules_of, without

ALWAYS_THERE = frozenset({"default", "kube-system"})
"""Namespaces that nobody has to make, or may delete."""

_LABELS = {"app.kubernetes.io/name": "gpu-provision"}


@dataclass(frozen=True, slots=True)
class Subject:
    """Who gets a role. ``kind`` is User, Group or ServiceAccount; only the last has a namespace."""

    kind: str
    name: str
    namespace: str = ""

    def reference(self) -> dict[str, str]:
        """Return the subject as bindings name it."""
        if self.kind == "ServiceAccount":
            return {"kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {"apiGroup": RBAC, "kind": self.kind, "name": self.name}


def roles(name: str, permissions: Iterable[Permission], subjects: Sequence[Subject]) -> list[Manifest]:
    """Return namespaces, roles and, if there are subjects, bindings, in an order in which they can be applied.

    What is needed in the whole cluster is in a ClusterRole, the rest in a Role per namespace. The namespaces come
    along without any setting, since a Role cannot be there before its namespace.
    """
    wanted = sorted(set(permissions))
    of_cluster = [one for one in wanted if not one.namespace]
    own = without((one for one in wanted if one.namespace), of_cluster)
    namespaces = sorted({one.namespace for one in own})
    found = [manifest(("v1", "Namespace"), namespace) for namespace in namespaces if namespace not in ALWAYS_THERE]
    found += _bound("ClusterRole", name, "", of_cluster, subjects)
    for namespace in namespaces:
        found += _bound("Role", name, namespace, [one for one in own if one.namespace == namespace], subjects)
    return found


def _bound(
    kind: str, name: str, namespace: str, permissions: Iterable[Permission], subjects: Sequence[Subject]
) -> list[Manifest]:
    common: dict[str, Any] = {"namespace": namespace, "labels": _LABELS}
    role = manifest((f"{RBAC}/v1", kind), name, **common, rules=rules_of(permissions))
    reference = {"apiGroup": RBAC, "kind": kind, "name": name}
    given = [subject.reference() for subject in subjects]
    binding = manifest((f"{RBAC}/v1", f"{kind}Binding"), name, **common, roleRef=reference, subjects=given)
    return [role, binding] if subjects else [role]
