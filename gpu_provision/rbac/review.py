"""Which permissions an account lacks, found before the first write and reported together."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from gpu_provision.kube.client import GrantedRules, KubeClient
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import ClusterFacts, Permission, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, InvalidError, ProvisionError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.openshift_specs import OPENSHIFT
from gpu_provision.model.plan import Action, Plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Desired
from gpu_provision.rbac import permissions
from gpu_provision.rbac.roles import describe, grants

_PARALLEL = 12
_UNKNOWN = GrantedRules((), incomplete=True)
_MISSING, _REFUSED = "GP310", "GP303"
_ACCOUNT = "system:serviceaccount:"
_OPENSHIFT_GROUP = ".openshift.io"
_ROLES = frozenset({"Role", "ClusterRole"})
_PER_NODE = frozenset({"Node", "Pod"})


def missing_permissions(
    cluster: KubeClient, wanted: Iterable[Permission], *, namespaces: Collection[str] | None = None
) -> tuple[Permission, ...]:
    """Return those permissions that the client's account lacks, sorted. Raises UnreachableError.

    One request for each of the ``namespaces`` that exist, if that is known, and one for the whole cluster. Where an
    authorizer cannot list its rules, such as a webhook, what no rule grants is asked for one by one. If even that is
    refused, the permission counts as granted: the request itself will tell.
    """
    asked = sorted(set(wanted))
    named = {one.namespace for one in asked}
    places = {each: each if namespaces is None or each in namespaces else "" for each in named}
    with RequestPool(cluster, _PARALLEL) as pool:
        distinct = sorted(set(places.values()))
        answers = dict(zip(distinct, pool.map(partial(_rules, cluster), distinct), strict=True))
        granted = {each: answers[place] for each, place in places.items()}
        left = [one for one in asked if not any(grants(rule, one) for rule in granted[one.namespace].rules)]
        refused = pool.map(lambda one: not (granted[one.namespace].incomplete and _is_allowed(cluster, one)), left)
        return tuple(one for one, is_refused in zip(left, refused, strict=True) if is_refused)


def _rules(cluster: KubeClient, namespace: str) -> GrantedRules:
    try:
        return cluster.rules(namespace)
    except (ForbiddenError, InvalidError):
        return _UNKNOWN


def _is_allowed(cluster: KubeClient, wanted: Permission) -> bool:
    try:
        return cluster.can_i(wanted)
    except (ForbiddenError, InvalidError):
        return True


def missing_for_run(  # noqa: PLR0913 - what a plan was made of
    cluster: KubeClient,
    inventory: Inventory,
    plan: Plan,
    desired: Desired,
    *,
    namespaces: Collection[str],
    refused: str = "",
) -> Finding | None:
    """Return what the account lacks to carry a plan out; None if nothing is missing.

    Every object of the inventory counts, also those that the plan does not change: a run undoes edits meanwhile.
    ``refused`` is what the server said to a dry run that the account may not ask for; it may name the account.
    """
    wanted = frozenset(required_for_run(inventory, plan, desired))
    changed = {change.ref for change in plan.changes if change.action in {Action.CREATE, Action.UPDATE}}
    # Roles that the plan changes, or whose bindings it changes; a binding has the name of its role.
    roles = {ref_of(item): item for items in desired.values() for item in items if item["kind"] in _ROLES}
    written = {
        ref: frozenset(permissions.role_permissions(item))
        for ref, item in roles.items()
        if changed & {ref, ref._replace(kind=f"{ref.kind}Binding")}
    }
    waivers = {role: frozenset(permissions.object_permissions(role, "escalate", "bind")) for role in written}
    asked = wanted.union(*written.values(), *waivers.values())
    missing = frozenset(missing_permissions(cluster, asked, namespaces=namespaces))
    # An account that may escalate and bind a role writes it whatever it grants.
    held = (one for role, granted in written.items() if missing & waivers[role] for one in granted)
    found = tuple(sorted(missing & wanted.union(held)))
    return _finding(cluster, inventory, found, refused) if found else None


def missing_finding(
    cluster: KubeClient, inventory: Inventory, wanted: Iterable[Permission], *options: str
) -> Finding | None:
    """Return what the account lacks of permissions, which ``gpu-provision rbac`` prints with these options."""
    found = missing_permissions(cluster, wanted)
    return _finding(cluster, inventory, found, "", *options) if found else None


def required_for_run(inventory: Inventory, plan: Plan, desired: Desired) -> Iterator[Permission]:
    """Yield what a run needs to carry a plan out, but for what the roles that it writes grant."""
    yield from permissions.for_run(inventory)
    yield from permissions.for_reboots(inventory)
    created = {change.ref for change in plan.changes if change.action is Action.CREATE}
    for item in (item for items in desired.values() for item in items):
        wanted = permissions.for_object(item)
        yield from (one for one in wanted if one.verb != "create" or ref_of(item) in created)
    for change in plan.changes:
        if change.action is Action.DELETE:
            yield from permissions.object_permissions(change.ref, "delete")
        elif (change.action, change.ref.kind) == (Action.UPDATE, "Pod"):
            yield from permissions.object_permissions(change.ref, "patch")


def missing_for_reading(cluster: KubeClient, inventory: Inventory, refusal: ForbiddenError) -> ForbiddenError:
    """Return the error for a refused reading: all that is missing, or a refusal that RBAC does not explain."""
    if refusal.findings[0].code != _REFUSED:
        return refusal
    whole = inventory
    if _OPENSHIFT_GROUP in refusal.findings[0].evidence:
        whole = replace(inventory, cluster=replace(inventory.cluster, platform=OPENSHIFT))
    _, desired = prepare(whole, ClusterFacts())
    kinds = {ref_of(item).type for items in desired.values() for item in items if item["kind"] not in _PER_NODE}
    with suppress(ProvisionError):
        if missing := missing_permissions(cluster, permissions.for_read(whole, kinds)):
            return ForbiddenError(_finding(cluster, inventory, missing, refusal.findings[0].evidence))
    return refusal


def _finding(
    cluster: KubeClient, inventory: Inventory, missing: tuple[Permission, ...], refusal: str, *options: str
) -> Finding:
    user = ""  # as the server calls it, if it tells
    if named := re.search(r'[Uu]ser "([^"]*)"', refusal):
        user = named[1]
    else:
        with suppress(ProvisionError):
            user = cluster.whoami()
    who = f"user {user}" if user else f"the kubeconfig's user {cluster.user}".rstrip()
    account = user.removeprefix(_ACCOUNT)
    subject = ("--service-account", account) if account != user else ("--user", user or "NAME")
    command = shlex.join(("gpu-provision", "rbac", "-i", inventory.path or "FILE", *options, *subject))
    is_openshift = any(one.group.endswith(_OPENSHIFT_GROUP) for one in missing)
    # Without it, the printed roles are those of plain Kubernetes.
    declare = "set cluster.platform: openshift, and " if is_openshift and not inventory.cluster.platform else ""
    number = f"{len(missing)} permissions" if len(missing) > 1 else "a permission"
    return Finding(
        code=_MISSING,
        what=f"{who} lacks {number} that this needs; nothing was written to the cluster",
        where=f"{cluster.name} ({cluster.server})",
        evidence="\n    ".join(["it may not", *describe(missing)]),
        fix=f"{declare}let an administrator run: {command} | kubectl apply -f -",
    )
