"""Missing permissions, found before the first write and told all at once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from gpu_provision.kube.access_review import lacking
from gpu_provision.kube.client import Cluster
from gpu_provision.model.cluster import ClusterFacts, Manifest, Permission, ref_of
from gpu_provision.model.findings import Finding, ProvisionError, Refused
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.rbac import describe
from gpu_provision.reconcile import permissions
from gpu_provision.reconcile.plan import ClusterPlan

_MISSING = "GP310"
_ACCOUNT = "system:serviceaccount:"
_GRANTING = frozenset({"Role", "ClusterRole"})
_COUNTED_PER_NODE = frozenset({"Node", "Pod"})


def missing_to_run(cluster: Cluster, reading: ClusterPlan) -> Finding | None:
    """Return what our user lacks to carry a plan out; None if nothing is lacking.

    Every object of the inventory counts, also those that the plan does not change: a run puts them right when
    somebody changes them meanwhile.
    """
    written = [_Written(item) for item in _written_roles(reading)]
    passed_on = {one for role in written for one in (*role.held, *role.waivers)}
    missing = frozenset(lacking(cluster, {*_wanted(reading), *passed_on}, namespaces=reading.observed.namespaces))
    required = {*_wanted(reading), *(one for role in written if missing & role.waivers for one in role.held)}
    found = tuple(sorted(missing & required))
    return _finding(cluster, reading.context.inventory, found, reading.refused) if found else None


def missing(cluster: Cluster, inventory: Inventory, wanted: Iterable[Permission], *options: str) -> Finding | None:
    """Return what our user lacks of certain permissions; None if nothing is lacking.

    Args:
        options: With which ``gpu-provision rbac`` prints them.
    """
    found = tuple(sorted(lacking(cluster, frozenset(wanted))))
    return _finding(cluster, inventory, found, "", *options) if found else None


def _wanted(reading: ClusterPlan) -> Iterator[Permission]:
    yield from permissions.to_run(reading.context.inventory)
    yield from permissions.to_reboot(reading.context.inventory)
    created = {change.ref for change in reading.plan.changes if change.action is Action.CREATE}
    for manifest in _rendered(reading):
        wanted = permissions.to_apply(manifest)
        yield from (one for one in wanted if one.verb != "create" or ref_of(manifest) in created)
    yield from (one for change in reading.plan.changes for one in _of_change(change))


class _Written:
    """A role that a run writes or binds.

    Attributes:
        held: What it grants: whoever writes it has to hold that.
        waivers: Who has these may write and bind it whatever it grants.
    """

    def __init__(self, role: Manifest) -> None:
        self.held = frozenset(permissions.to_grant(role))
        self.waivers = frozenset(permissions.permissions(ref_of(role), "escalate", "bind"))


def _written_roles(reading: ClusterPlan) -> Iterator[Manifest]:
    """Yield the roles that the plan changes, or whose bindings it changes; a binding is called as its role."""
    written = {change.ref for change in reading.plan.changes if change.action in {Action.CREATE, Action.UPDATE}}
    for manifest in _rendered(reading):
        ref = ref_of(manifest)
        if ref.kind in _GRANTING and written & {ref, ref._replace(kind=f"{ref.kind}Binding")}:
            yield manifest


def _rendered(reading: ClusterPlan) -> Iterator[Manifest]:
    return (item for items in reading.desired.values() for item in items)


def _of_change(change: Change) -> Iterator[Permission]:
    """Yield what no run needs but one that deletes an object, or patches a pod."""
    match change.action, change.ref.kind:
        case Action.DELETE, _:
            yield from permissions.permissions(change.ref, "delete")
        case Action.UPDATE, "Pod":
            yield from permissions.permissions(change.ref, "patch")


def missing_to_read(cluster: Cluster, inventory: Inventory, refusal: Refused) -> Refused:
    """Return the error for a reading that was refused: everything that is missing for reading, or the refusal itself.

    A refusal that RBAC does not explain, such as a proxy's, stays as it is.
    """
    if refusal.findings[0].code != _REFUSED:
        return refusal
    _, desired = prepare(inventory, ClusterFacts())
    kinds = {ref_of(item).type for items in desired.values() for item in items if item["kind"] not in _COUNTED_PER_NODE}
    try:
        missing = lacking(cluster, permissions.to_read(inventory, kinds))
    except ProvisionError:
        return refusal
    if not missing:
        return refusal
    return Refused(_finding(cluster, inventory, missing, refusal.findings[0].evidence))


def missing_to_remove(cluster: Cluster, inventory: Inventory, wanted: Iterable[Permission]) -> Finding | None:
    """Return what our user lacks to remove a stack; None if nothing is lacking."""
    found = lacking(cluster, wanted)
    return _finding(cluster, inventory, found, "", "--destroy") if found else None


_REFUSED = "GP303"


def _finding(
    cluster: Cluster, inventory: Inventory, missing: tuple[Permission, ...], refusal: str, *options: str
) -> Finding:
    user = _user(cluster, refusal)
    who = f"user {user}" if user else f"the kubeconfig's user {cluster.user}".rstrip()
    number = f"{len(missing)} permissions" if len(missing) > 1 else "a permission"
    return Finding(
        code=_MISSING,
        what=f"{who} lacks {number} that this needs; nothing was written",
        where=f"{cluster.name} ({cluster.server})",
        evidence=_listed(describe(missing)),
        fix=f"let an administrator run: {_command(inventory, user, *options)} | kubectl apply -f -",
    )


def _listed(lines: Iterable[str]) -> str:
    return "\n    ".join(["it may not", *lines])


def _user(cluster: Cluster, refusal: str) -> str:
    """Return the name by which the server knows us; empty if it does not tell."""
    named = re.search(r'[Uu]ser "([^"]*)"', refusal)
    if named:
        return named.group(1)
    try:
        return cluster.whoami()
    except ProvisionError:
        return ""


def _command(inventory: Inventory, user: str, *options: str) -> str:
    account = user.removeprefix(_ACCOUNT)
    subject = ("--service-account", account) if account != user else ("--user", user or "NAME")
    return shlex.join(("gpu-provision", "rbac", "-i", inventory.path or "FILE", *options, *subject))
