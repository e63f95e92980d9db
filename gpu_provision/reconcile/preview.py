"""What a run is going to do to nodes whose drivers it replaces, read off the cluster before it begins."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from gpu_provision.kube.client import Cluster
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model.findings import Finding, Refused, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Schedule
from gpu_provision.model.progress import NodeState
from gpu_provision.planning.departures import with_departures
from gpu_provision.planning.rollout_changes import foreseen
from gpu_provision.planning.states import Key, Situation
from gpu_provision.reconcile.reading import Reading
from gpu_provision.reconcile.rollout import budgets_of, declared_of, without_driver
from gpu_provision.reconcile.rollout_states import proofs
from gpu_provision.rollout import leaving, needs
from gpu_provision.rollout.budgets import evicts, policy_of
from gpu_provision.rollout.observe import Seen, observe
from gpu_provision.rollout.preview import schedule


def with_rollout(cluster: Cluster, reading: Reading, situation: Situation, known: Mapping[Key, NodeState]) -> Reading:
    """Return a reading whose plan says how drivers are replaced, and how nodes leave.

    That costs a fixed number of requests: nodes, all pods, PodDisruptionBudgets, and ResourceClaims if any pod has one.
    A user who may not read the first three gets the plan without, and a warning.

    Args:
        situation: What the plan was made of.
        known: Where everything stands in it.
    """
    inventory = reading.context.inventory
    try:
        seen = _seen(cluster, inventory)
    except Refused as refusal:
        plan = replace(reading.plan, findings=(*reading.plan.findings, _not_read(refusal)))
        return replace(reading, plan=with_departures(plan, situation, Schedule()))
    seen = replace(seen, proofs=proofs(known))
    snapshot = observe(declared_of(reading) | without_driver(situation), seen, now=time.time())
    found = schedule(snapshot, policy_of(inventory))
    plan = reading.plan
    if not found.is_empty:
        proven = {node.name for node in snapshot.nodes if node.is_under_way and needs.is_proven(node)}
        outdated = {node.name for node in snapshot.nodes if needs.why(node)}
        plan = foreseen(plan, found, situation, proven=proven, outdated=outdated)
    users = {
        node.name: tuple(f"{pod.namespace}/{pod.name}" for pod in leaving.users(node))
        for node in snapshot.nodes
        if node.is_leaving
    }
    return replace(reading, plan=with_departures(plan, situation, plan.rollout or found, users))


def _seen(cluster: Cluster, inventory: Inventory) -> Seen:
    with RequestPool(cluster) as pool:
        found = [pool.submit(cluster.list, kind, keep=trim) for kind in (NODE, POD)]
        budgets = cluster.list(budgets_of(cluster)).items if evicts(inventory) else ()
        nodes, pods = (each.result().items for each in found)
    return Seen(nodes=nodes, pods=pods, budgets=budgets, claims=ResourceClaims(cluster).of(pods))


def _not_read(refusal: Refused) -> Finding:
    return Finding(
        code="GP320",
        what="drivers are to be replaced, and how could not be looked at: that needs rights to read",
        evidence=refusal.findings[0].evidence,
        consequence="the plan does not say in which order, nor which pods are evicted",
        fix="gpu-provision rbac --read-only prints the rights that a plan needs",
        severity=Severity.WARNING,
    )
