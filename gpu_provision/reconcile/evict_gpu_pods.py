"""Has the pods of others that use GPUs evicted, as their budgets allow, before drivers go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_provision.destroy import findings
from gpu_provision.destroy.discovery import users
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.drain import POD, Drainer, Say
from gpu_provision.kube.informer import Scope
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Finding
from gpu_provision.planning.drain import DrainPlan
from gpu_provision.rollout.observe import pod_of


def evicting(cluster: Cluster, nodes: frozenset[str], seconds: int, say: Say) -> Drainer:
    """Return the eviction of everything that uses GPUs on some nodes."""
    claims = ResourceClaims(cluster)

    def chosen(pods: Iterable[Manifest]) -> DrainPlan:
        there = [pod for pod in pods if node_of(pod) in nodes]
        found = [pod for on_node in users(there, nodes, claims.of(there)).values() for pod in on_node]
        ending = [pod for pod in found if pod["metadata"].get("deletionTimestamp")]
        return DrainPlan(tuple(pod for pod in found if pod not in ending), tuple(ending))

    def late(left: DrainPlan, refusals: Mapping[str, str], seconds: int) -> tuple[Finding, ...]:
        return tuple(findings.not_evicted(pod_of(pod, refusals=refusals), seconds) for pod in left.goes)

    title = "evicting pods that use GPUs"
    return Drainer(cluster, Scope(POD), chosen, late, seconds=seconds, title=title, say=say)
