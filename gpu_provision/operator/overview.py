"""What there is of the operator in a cluster: who leads, which versions its parts have, and how its stacks stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.lease import holder_identity
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, ForbiddenError, Severity
from gpu_provision.model.text import join_limited
from gpu_provision.operator import crd
from gpu_provision.operator.stack import CONTROLLER_NAME, CONTROLLER_NAMESPACE, GROUP, STACK, lease_of
from gpu_provision.planning.diff import differences

VERSION = f"{GROUP}/version"
"""Annotation of the leader's lease: the version of the controller that leads."""

_MOST_NAMED = 5


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
        """Whether a controller leads, and every stack is as declared."""
        return bool(self.leader) and all(row.is_ready and row.is_current for row in self.stacks)


def read_overview(cluster: KubeClient) -> Overview:
    """Return its state; three requests, if no stack names another lease. Raises UnreachableError, ForbiddenError."""
    deployment = cluster.get(ObjectRef("apps/v1", "Deployment", CONTROLLER_NAMESPACE, CONTROLLER_NAME))
    stacks = cluster.list(STACK).items
    refs = sorted({lease_of(stack) for stack in stacks}) or [lease_of(None)]
    leases = [(ref, cluster.get(ref) or {}) for ref in refs]
    ref, lease = next((each for each in leases if holder_identity(each[1])), leases[0])
    controllers = ""
    if deployment:
        ready = (deployment.get("status") or {}).get("readyReplicas", 0)
        controllers = f"{ready}/{deployment['spec'].get('replicas', 1)}"
    return Overview(
        leader=holder_identity(lease),
        lease=str(ref),
        version=version_of(lease),
        controllers=controllers,
        stacks=tuple(_row(stack) for stack in sorted(stacks, key=lambda each: str(each["metadata"]["name"]))),
    )


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
        message=ready.get("message", "no controller has reconciled it yet"),
    )


def version_annotation() -> dict[str, str]:
    """Return the annotation that says which version this is."""
    return {VERSION: version("gpu-provision")}


def version_of(lease: Manifest) -> str:
    """Return the version of the leader; empty if the lease does not say it, or has no holder."""
    annotations = (lease.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(VERSION) or "") if holder_identity(lease) else ""


def skew_findings(cluster: KubeClient, controller: str, lease: str) -> tuple[Finding, ...]:
    """Return warnings about parts of another version than this one; one request.

    Args:
        controller: Version of the controller that leads; empty if it is not known.
        lease: The lease by which it leads.

    Raises:
        UnreachableError: The API server does not answer.
    """
    found, ours = [], version("gpu-provision")
    if controller not in {"", ours}:
        other_controller = Finding(
            code=codes.OTHER_VERSION,
            where=lease,
            what=f"the controller is gpu-provision {controller}, and this is {ours}",
            consequence="plan and apply may see differences here that the controller does not see",
            fix="gpu-provision operator install --image IMAGE brings it to this version; or use its version here",
            severity=Severity.WARNING,
        )
        found.append(other_controller)
    try:
        live = cluster.get(ObjectRef(*crd.DEFINITION, "", crd.CRD_NAME))
    except ForbiddenError:  # a role that may read stacks need not allow to read their definition
        return tuple(found)
    # Rules in CEL are the API server's affair.
    changes = min((differences(crd.definition(rules=rules), live) for rules in (True, False)), key=len) if live else ()
    if changes:
        other_definition = Finding(
            code=codes.OTHER_VERSION,
            where=f"CustomResourceDefinition {crd.CRD_NAME}",
            what="the definition of stacks is not that of this version of gpu-provision",
            evidence=join_limited([each.path for each in changes], _MOST_NAMED),
            consequence="keys that it does not know are dropped from stacks",
            fix="gpu-provision operator install brings it to this version",
            severity=Severity.WARNING,
        )
        found.append(other_definition)
    return tuple(found)
