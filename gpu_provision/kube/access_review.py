"""Which permissions the user lacks: one SelfSubjectRulesReview per namespace, whatever the number of permissions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from gpu_provision.kube.client import Cluster, GrantedRules
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import Permission
from gpu_provision.model.findings import Refused, Rejected
from gpu_provision.planning.rbac import grants

_UNKNOWN = GrantedRules((), incomplete=True)


def find_missing_permissions(
    cluster: Cluster, wanted: Iterable[Permission], *, namespaces: Collection[str] | None = None
) -> tuple[Permission, ...]:
    """Return those permissions that we do not have, sorted.

    One request for each namespace in question and one for the whole cluster. Where an authorizer cannot list its
    rules, such as a webhook, what no rule grants is asked for one by one. Who cannot be asked is believed to allow.

    Args:
        namespaces: Those that exist, if that is known: in others only what holds everywhere is granted.

    Raises:
        Unreachable: The API server does not answer.
    """
    asked = sorted(set(wanted))
    named = {one.namespace for one in asked}
    places = {each: each if namespaces is None or each in namespaces else "" for each in named}
    with RequestPool(cluster) as pool:
        distinct = sorted(set(places.values()))
        answers = dict(zip(distinct, pool.map(partial(_rules, cluster), distinct), strict=True))
        granted = {each: answers[place] for each, place in places.items()}
        left = [one for one in asked if not any(grants(rule, one) for rule in granted[one.namespace].rules)]
        refused = pool.map(lambda one: not (granted[one.namespace].incomplete and _may(cluster, one)), left)
        return tuple(one for one, is_refused in zip(left, refused, strict=True) if is_refused)


def _rules(cluster: Cluster, namespace: str) -> GrantedRules:
    try:
        return cluster.rules(namespace)
    except (Refused, Rejected):
        return _UNKNOWN


def _may(cluster: Cluster, wanted: Permission) -> bool:
    try:
        return cluster.can_i(wanted)
    except (Refused, Rejected):
        return True
