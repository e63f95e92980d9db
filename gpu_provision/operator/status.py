"""The status of a GPUStack: conditions with reasons, a bounded number of rows, and how a client reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import accumulate
from typing import Any

from gpu_provision.components import labels
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.lease import holder_identity
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef
from gpu_provision.model.codes import LOCKED, PLAN_STALE, ROLLED_BACK
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.text import join_limited
from gpu_provision.operator.crd import MAX_PROBLEMS
from gpu_provision.operator.stack import CONTROLLER_NAME, CONTROLLER_NAMESPACE, LEADER_VERSION, STACK, lease_of
from gpu_provision.planning.states import ClusterState, ComponentNode
from gpu_provision.reconcile.status import component_rows, node_rows
from gpu_provision.rollout import states as upgrade

_MAX_MESSAGE = 1024  # characters; the API server accepts 32 KiB, which no reader needs
_MAX_PROBLEM, _MAX_FINDINGS = 4096, 20  # characters, and findings
_LATER_PROBLEM = "; since then: "
_ABOUT_TO = "a run is about to begin"


class Reason(StrEnum):
    """Reasons of conditions; alerts and scripts match these."""

    READY = "AllReady"
    INVALID = "InvalidSpec"
    OVERLAP = "OverlappingStacks"
    NO_GPU_NODES = "NoGPUNodes"
    NO_FEATURES = "NodeFeaturesMissing"
    PROGRESSING = "Converging"
    AVAILABLE = "AsExpected"
    FAILED = "NodesFailed"
    RUN_FAILED = "RunFailed"
    ROLLED_BACK = "RolledBack"
    REMOVING = "Removing"
    INTERNAL_ERROR = "InternalError"
    IDLE = "NothingToDo"
    OTHER_RUN = "OtherRun"


# Codes of findings with their own reason.
_REASONS = {ROLLED_BACK: Reason.ROLLED_BACK, LOCKED: Reason.OTHER_RUN, PLAN_STALE: Reason.OTHER_RUN}


@dataclass(frozen=True, slots=True)
class StackProblem:
    """Why a stack is not reconciled, or why its run failed."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackObservation:
    """The input of a status."""

    generation: int
    release: str = ""
    cluster_state: ClusterState | None = None  # state of the cluster; None before the first iteration
    states: Mapping[ComponentNode, NodeState] | None = None
    is_working: bool = False  # whether a run is active or about to begin
    wait_reason: str = ""  # why a due run does not begin yet
    problem: StackProblem | None = None  # why the stack is blocked, or why the last run failed


def status_of(observation: StackObservation, before: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return the status of a stack at a time (RFC 3339); an unchanged condition keeps its ``lastTransitionTime``."""
    problem = observation.problem or _find_problem(observation)
    awaited = observation.wait_reason or _waiting_message(observation.states or {})
    waits_for, is_working = awaited or _ABOUT_TO, observation.is_working
    ready = ("True", Reason.READY, "every component is as declared on every GPU node, and proven")
    progressing = ("False", Reason.IDLE, awaited or "there is nothing to do")
    degraded = ("False", Reason.AVAILABLE, "nothing has failed")
    if is_working or awaited or observation.cluster_state is None:
        ready = ("False", Reason.PROGRESSING, waits_for)
    if is_working:
        progressing = ("True", Reason.PROGRESSING, waits_for)
    if problem:
        ready = ("False", problem.reason, problem.message)
        degraded = ("True", problem.reason, problem.message)
    known = {each["type"]: each for each in before.get("conditions") or ()}
    rows = []
    for kind, (value, reason, message) in (("Ready", ready), ("Progressing", progressing), ("Degraded", degraded)):
        earlier = known.get(kind, {})
        row = {
            "type": kind,
            "status": value,
            "reason": reason.value,
            "message": message,
            "observedGeneration": observation.generation,
            "lastTransitionTime": earlier.get("lastTransitionTime", now) if earlier.get("status") == value else now,
        }
        rows.append(row)
    status = {"observedGeneration": observation.generation, "release": observation.release, "conditions": rows}
    if observation.cluster_state:
        status |= _component_and_node_rows(observation.cluster_state, observation.states or {})
    result: dict[str, Any] = _without_empty_texts(status)
    return result


def _without_empty_texts(value: Any) -> Any:
    """Leave out empty texts, which some builds of Kubernetes 1.20 treat as null in a custom object."""
    if isinstance(value, Mapping):
        return {key: _without_empty_texts(item) for key, item in value.items() if item != ""}
    return [_without_empty_texts(item) for item in value] if isinstance(value, list) else value


def _find_problem(observation: StackObservation) -> StackProblem | None:
    """Return the problem of failed components, of a stack without GPU nodes, or of missing NFD labels."""
    if observation.cluster_state is None:
        return None
    states = (observation.states or {}).values()
    if failed := [_describe_state(state) for state in states if state.state is State.FAILED]:
        return StackProblem(Reason.FAILED, truncate("; ".join(failed), _MAX_MESSAGE))
    if observation.is_working:
        return None
    targets = observation.cluster_state.context.targets
    if not targets:
        return StackProblem(Reason.NO_GPU_NODES, "no node of the cluster is one of this stack's GPU nodes")
    silent = [target.name for target in targets if target.facts and not labels.has_nfd_labels(target.facts.labels)]
    if len(silent) < len(targets):
        return None
    message = f"Node Feature Discovery has labelled none of: {', '.join(silent)}"
    return StackProblem(Reason.NO_FEATURES, truncate(message, _MAX_MESSAGE))


def _describe_state(state: NodeState) -> str:
    place = f"{state.component} on {state.node}" if state.node else state.component
    return f"{place}: {state.reason}" if state.reason else place


def _waiting_message(states: Mapping[ComponentNode, NodeState]) -> str:
    """Return how many components are not ready, and the first one's reason."""
    waiting = [each for each in states.values() if each.state in {State.PENDING, State.PROGRESSING, State.LEAVING}]
    if not waiting:
        return ""
    first = next((state for state in waiting if state.state is State.PROGRESSING), waiting[0])
    more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return truncate(f"{_describe_state(first)}{more}", _MAX_MESSAGE)


def _component_and_node_rows(seen: ClusterState, states: Mapping[ComponentNode, NodeState]) -> dict[str, Any]:
    targets = {target.name for target in seen.context.targets}
    rows = [row for row in node_rows(seen, states) if row.node in targets]
    ready = sum(row.state is State.READY for row in rows)
    problems = [row for row in rows if row.state is not State.READY]
    return {
        "components": [
            {
                "name": row.component,
                "version": row.version,
                "desired": row.desired,
                "ready": row.ready,
                "state": row.state.value,
                "reason": row.reason[:_MAX_MESSAGE],
            }
            for row in component_rows(seen, states)
        ],
        "nodes": {
            "total": len(targets),
            "ready": ready,
            "summary": f"{ready}/{len(targets)}",
            "gpus": sum(row.allocatable or 0 for row in rows),
            "problems": [
                {"name": row.node, "state": row.state.value, "reason": row.reason[:_MAX_MESSAGE]}
                for row in problems[:MAX_PROBLEMS]
            ],
        },
        "rollout": _rollout_counts([target.facts for target in seen.context.targets if target.facts]),
    }


def _rollout_counts(nodes: Sequence[NodeFacts]) -> dict[str, Any]:
    counts = Counter(upgrade.parse_state(node.labels.get(upgrade.STATE, "")) for node in nodes)
    states = upgrade.UpgradeState
    done, failed = counts[states.DONE], counts[states.FAILED]
    waiting = counts[states.UPGRADE_REQUIRED]
    under_way = sum(number for state, number in counts.items() if state in upgrade.EARLY | upgrade.LATE)
    summary = f"{done}/{done + failed + waiting + under_way}" if failed + waiting + under_way else ""
    return {"done": done, "failed": failed, "waiting": waiting, "underWay": under_way, "summary": summary}


def truncate(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def problem_of(findings: Sequence[Finding], reason: Reason = Reason.RUN_FAILED) -> StackProblem | None:
    """Return the problem that the errors among findings describe; None without errors."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return None
    codes = {finding.code for finding in errors}
    own_reason = next((_REASONS[code] for code in _REASONS if code in codes), reason)
    sentences = []
    for finding in errors:
        place = f"{finding.where}: " if finding.where else ""
        seen = f" ({finding.evidence})" if finding.evidence else ""
        fix = f". Fix: {finding.fix.rstrip('.')}" if finding.fix else ""
        sentences.append(f"{finding.code} {place}{finding.what.rstrip('.')}{seen}{fix}")
    room = _MAX_PROBLEM - len(" and 1000000 more")  # whole sentences, and the count of the others
    fitting = sum(end <= room for end in accumulate(len(each) + len("; ") for each in sentences))
    limit = max(1, min(fitting, _MAX_FINDINGS))
    return StackProblem(own_reason, join_limited([truncate(each, room) for each in sentences], limit, "; "))


def add_later_problem(rolled_back: StackProblem | None, problem: StackProblem | None) -> StackProblem | None:
    """Return the problem of a rolled back stack, with a later problem appended."""
    if rolled_back is None or problem is None:
        return rolled_back or problem
    return StackProblem(rolled_back.reason, f"{rolled_back.message}{_LATER_PROBLEM}{problem.message}")


def rollback_problem(stack: Manifest) -> StackProblem | None:
    """Return the problem of a stack whose present spec failed and was rolled back, without later problems."""
    degraded = _conditions(stack).get("Degraded", {})
    if degraded.get("reason") != Reason.ROLLED_BACK:
        return None
    return StackProblem(Reason.ROLLED_BACK, degraded["message"].partition(_LATER_PROBLEM)[0])


class StackPhase(Enum):
    """The controller's progress with the present spec."""

    NOT_OBSERVED = auto()  # the status is about an earlier generation
    WORKING = auto()
    READY = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class StackEvaluation:
    """The controller's progress, and the cause of a failure."""

    phase: StackPhase
    reason: str = ""
    summary: str = ""  # reason and message of the failed condition: `NodesFailed: driver on t4-1: ...`


def evaluate_status(stack: Manifest) -> StackEvaluation:
    """Evaluate the conditions of a stack. An active run may repair an earlier failure."""
    conditions = _conditions(stack)
    true = {kind for kind, each in conditions.items() if each["status"] == "True"}
    if not conditions:
        return StackEvaluation(StackPhase.NOT_OBSERVED)
    if "Progressing" not in true and "Degraded" in true:
        degraded = conditions["Degraded"]
        return StackEvaluation(StackPhase.FAILED, degraded["reason"], f"{degraded['reason']}: {degraded['message']}")
    is_ready = "Progressing" not in true and "Ready" in true
    return StackEvaluation(StackPhase.READY if is_ready else StackPhase.WORKING)


def _conditions(stack: Manifest) -> Mapping[str, Mapping[str, Any]]:
    """Return the conditions by type; none if the status is about an earlier generation."""
    status = stack.get("status") or {}
    if status.get("observedGeneration") != stack["metadata"].get("generation"):
        return {}
    return {each["type"]: each for each in status.get("conditions") or ()}


def failed_components(stack: Manifest) -> Mapping[tuple[str, str], str]:
    """Return the failed components that a stack's status names: (component, node) to reason."""
    status = stack.get("status") or {}
    rows = [row for row in (status.get("nodes") or {}).get("problems") or () if row.get("state") == State.FAILED]
    on_nodes = {}
    for row in rows:
        component, _, reason = row.get("reason", "").partition(": ")  # driver: ImagePullBackOff
        on_nodes[component, row["name"]] = reason
    named = {component for component, _ in on_nodes}
    failed = [row for row in status.get("components") or () if row.get("state") == State.FAILED]
    return on_nodes | {(row["name"], ""): row.get("reason", "") for row in failed if row["name"] not in named}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRow:
    """The status of one stack; empty texts before its first reconciliation."""

    name: str
    release: str
    is_ready: bool
    is_current: bool  # whether the status is about the present generation
    nodes: str
    gpus: int
    rollout: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of the operator in a cluster."""

    leader: str  # identity of the leader; empty without one
    lease: str  # the lease of the leader election
    version: str  # of the leader; empty if unknown
    controllers: str  # ready replicas of the Deployment, such as `2/2`; empty without a Deployment
    stacks: tuple[StackRow, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether a controller leads, and every stack is as declared."""
        return bool(self.leader) and all(row.is_ready and row.is_current for row in self.stacks)


def read_overview(cluster: KubeClient) -> Overview:
    """Read the operator's state, with one request for each lease. Raises UnreachableError, ForbiddenError."""
    deployment = cluster.get(ObjectRef("apps/v1", "Deployment", CONTROLLER_NAMESPACE, CONTROLLER_NAME))
    stacks = cluster.list(STACK).items
    refs = sorted({lease_of(stack) for stack in stacks}) or [lease_of(None)]
    leases = [(ref, cluster.get(ref) or {}) for ref in refs]
    ref, lease = next((each for each in leases if holder_identity(each[1])), leases[0])
    controllers = ""
    if deployment:
        ready = (deployment.get("status") or {}).get("readyReplicas", 0)
        controllers = f"{ready}/{deployment['spec'].get('replicas', 1)}"
    annotations = (lease.get("metadata") or {}).get("annotations") or {}
    return Overview(
        leader=holder_identity(lease),
        lease=str(ref),
        version=str(annotations.get(LEADER_VERSION) or "") if holder_identity(lease) else "",
        controllers=controllers,
        stacks=tuple(_stack_row(stack) for stack in sorted(stacks, key=lambda each: str(each["metadata"]["name"]))),
    )


def _stack_row(stack: Manifest) -> StackRow:
    status: Mapping[str, Any] = stack.get("status") or {}
    nodes, rollout = status.get("nodes") or {}, status.get("rollout") or {}
    ready = condition_of(stack, "Ready")
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


def condition_of(item: Manifest, kind: str) -> Mapping[str, Any]:
    """Return a condition of an object's status; empty if the status has none of this type."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), {})
