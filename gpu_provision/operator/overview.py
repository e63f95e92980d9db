"""What there is of the operator in a cluster, and how its stacks stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.kube.client import Cluster
from gpu_provision.kube.fence import named_in
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.operator.leader_election import lease_for
from gpu_provision.operator.manifests import NAME, NAMESPACE
from gpu_provision.operator.stack import STACK
from gpu_provision.operator.version_skew import version_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRow:
    """One stack as its status says; empty texts before anybody has looked after it.

    Attributes:
        is_current: Whether the status is about what the stack declares now.
    """

    name: str
    release: str
    is_ready: bool
    is_current: bool
    nodes: str
    gpus: int
    rollout: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The operator of a cluster.

    Attributes:
        leader: The controller that works; empty if none does.
        lease: By which it leads.
        version: Of that controller; empty if none works, or if it does not say.
        controllers: How many of those in the cluster are ready, such as ``2/2``; empty if there are none.
    """

    leader: str
    lease: str
    version: str
    controllers: str
    stacks: tuple[StackRow, ...]

    @property
    def is_well(self) -> bool:
        """Whether somebody leads, and every stack is as declared."""
        return bool(self.leader) and all(row.is_ready and row.is_current for row in self.stacks)


def overview(cluster: Cluster) -> Overview:
    """Return how it stands; three requests, if no stack names another lease. Raises Unreachable, Refused."""
    deployment = cluster.get(ObjectRef("apps/v1", "Deployment", NAMESPACE, NAME))
    stacks = cluster.list(STACK).items
    ref, lease = _lease(cluster, stacks)
    return Overview(
        leader=named_in(lease),
        lease=str(ref),
        version=version_of(lease),
        controllers=_controllers(deployment) if deployment else "",
        stacks=tuple(_row(stack) for stack in sorted(stacks, key=lambda each: str(each["metadata"]["name"]))),
    )


def _lease(cluster: Cluster, stacks: Iterable[Manifest]) -> tuple[ObjectRef, Manifest]:
    """Return the lease that somebody holds of those that stacks name, the usual one if there is none."""
    refs = sorted({lease_for(stack) for stack in stacks}) or [lease_for(None)]
    found = [(ref, cluster.get(ref) or {}) for ref in refs]
    return next((each for each in found if named_in(each[1])), found[0])


def _controllers(deployment: Manifest) -> str:
    return f"{(deployment.get('status') or {}).get('readyReplicas', 0)}/{deployment['spec'].get('replicas', 1)}"


def _row(stack: Manifest) -> StackRow:
    status: Mapping[str, Any] = stack.get("status") or {}
    nodes, rollout = status.get("nodes") or {}, status.get("rollout") or {}
    conditions = status.get("conditions") or ()
    ready: Mapping[str, Any] = next((each for each in conditions if each["type"] == "Ready"), {})
    return StackRow(
        name=stack["metadata"]["name"],
        release=status.get("release", ""),
        is_ready=ready.get("status") == "True",
        is_current=status.get("observedGeneration") == stack["metadata"].get("generation"),
        nodes=nodes.get("summary", ""),
        gpus=nodes.get("gpus", 0),
        rollout=rollout.get("summary", ""),
        message=ready.get("message", "nobody has looked after it yet"),
    )
