"""Evidence from pods: logs of crashed containers, verdicts of validations, and the causes of a failed run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gpu_provision.components import device_plugin_validation, driver_validation, validator
from gpu_provision.components.labels import APP, COMPONENT, STACK
from gpu_provision.diagnostics import failures
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.diagnostics.failures import FailedState
from gpu_provision.diagnostics.pods import Crash
from gpu_provision.kube import observe
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.observe import POD
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.model.progress import Evidence, NodeState, State
from gpu_provision.planning.prune import superseded_pods
from gpu_provision.planning.states import NO_POD, ClusterState, ComponentNode, daemonset_on
from gpu_provision.planning.upgrades import DRIVER_KEPT, OUTDATED, STACK_KEPT, is_kept
from gpu_provision.planning.verdicts import RUNS_IN, STARTUP_TAINT, VALIDATIONS, Verdict, has_startup_taint, verdict_of
from gpu_provision.reconcile.cluster_state import Memo
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.states import NOT_VALIDATED
from gpu_provision.reconcile.steps import ReadLog
from gpu_provision.rollout.states import NOT_READY, unfinished_node_findings

if TYPE_CHECKING:
    from gpu_provision.reconcile.run import Outcome

LOG_LINES = 30
MAX_LOGS = 20
"""Maximum of pods of one component whose logs are read: a failure of the whole fleet has one cause."""


class CrashLog(NamedTuple):
    """The last lines of a crashed container, and the name of its pod."""

    pod: str
    crash: Crash
    lines: tuple[str, ...]


@dataclass(slots=True)
class Crashes:
    """Reads logs of crashed containers through steps, in threads of the executor.

    The log of a pod stays until it has been read again after the next restart.
    """

    cluster: KubeClient
    _requested: dict[str, dict[str, int]] = field(default_factory=dict)  # component -> uid -> restarts
    _logs: dict[str, CrashLog] = field(default_factory=dict)  # by uid of the pod; written by threads of steps
    _logs_by_exit: dict[tuple[str, str], CrashLog] = field(default_factory=dict)  # by component and exit

    def start_reading(self, states: Mapping[ComponentNode, NodeState], seen: ClusterState) -> Iterator[ReadLog]:
        """Yield a step for each container that has crashed since its log was requested."""
        for key, pod, crash in _crashing_pods(states, seen):
            requested, uid = self._requested.setdefault(key[0], {}), pod["metadata"]["uid"]
            if requested.get(uid, -1) < crash.restarts and (uid in requested or len(requested) < MAX_LOGS):
                requested[uid] = crash.restarts
                yield ReadLog(key, ref_of(pod), uid, crash)

    def read_log(self, step: ReadLog) -> None:
        """Read one log; ignore errors."""
        crash = step.crash
        try:
            lines = self.cluster.read_log(step.ref, crash.container, lines=LOG_LINES, previous=crash.has_restarted)
        except ProvisionError:
            return
        if any(map(str.strip, lines)):
            self._logs[step.uid] = self._logs_by_exit[step.key[0], str(crash)] = CrashLog(step.ref.name, crash, lines)

    def add_crash_reasons(
        self, states: Mapping[ComponentNode, NodeState], seen: ClusterState
    ) -> Mapping[ComponentNode, NodeState]:
        """Return the states with the last log lines of crashed containers in place of their restart counts."""
        known = {key: _with_crash_reason(states[key], pod, log) for key, pod, log in self._find_logs(states, seen)}
        return {**states, **known} if known else states

    def find_crash_logs(
        self, states: Mapping[ComponentNode, NodeState], seen: ClusterState
    ) -> dict[ComponentNode, CrashLog]:
        """Return the logs of the crashed pods of states."""
        return {key: log for key, _, log in self._find_logs(states, seen)}

    def _find_logs(
        self, states: Mapping[ComponentNode, NodeState], seen: ClusterState
    ) -> Iterator[tuple[ComponentNode, Manifest, CrashLog]]:
        for key, pod, crash in _crashing_pods(states, seen) if self._logs else ():
            uid, similar = pod["metadata"]["uid"], self._logs_by_exit.get((key[0], str(crash)))
            if log := self._logs.get(uid) if uid in self._requested.get(key[0], {}) else similar:
                yield key, pod, log


def pods_of(state: NodeState, seen: ClusterState) -> Iterator[Manifest]:
    """Yield the pods of a state: those of a component on a node, or those of its Deployments on any node."""
    if state.node:
        yield from seen.pods.get((state.component, state.node), ())
        return
    for (component, _), pods in seen.pods.items():
        yield from (pod for pod in pods if component == state.component and pod_view.is_of_deployment(pod))


def _crashing_pods(
    states: Mapping[ComponentNode, NodeState], seen: ClusterState
) -> Iterator[tuple[ComponentNode, Manifest, Crash]]:
    for key, state in states.items():
        if state.state is not State.PROGRESSING and state.state is not State.FAILED:
            continue
        crashing = ((pod, crash) for pod in pods_of(state, seen) if (crash := pod_view.crash(pod)))
        yield from ((key, *crashed) for crashed in islice(crashing, 1))


def _with_crash_reason(state: NodeState, pod: Manifest, log: CrashLog) -> NodeState:
    """Return a state with the log of its pod in its reason, unless the reason is about something else."""
    words, cause = failures.describe_exit(str(log.crash), log.lines), pod_view.cause(pod)
    if cause in state.reason:
        return replace(state, reason=state.reason.replace(cause, words))
    is_about_it = not state.node or state.reason.startswith(NOT_READY)
    return replace(state, reason=f"{words}; {state.reason}") if is_about_it else state


_RUN_BY = {runs_in: validation for validation, runs_in in RUNS_IN.items()}


class Validations:
    """Collects verdicts from pods, and records those whose pods are deleted at the end."""

    def __init__(self, cluster: KubeClient, reading: ClusterPlan) -> None:
        """Start from the record in the cluster."""
        self._cluster, self._inventory = cluster, reading.context.inventory
        self._context = reading.context
        # the verdict as text, see `planning.verdicts`
        self.passed: dict[ComponentNode, str] = dict(reading.observed.verdicts)
        self.evidence: dict[ComponentNode, Evidence] = {}  # output of vectorAdds in this run
        self._verdicts = Memo[str, Verdict | None]()
        self._collected: dict[str, Verdict] = {}
        self._is_first = True
        self._repeats = reading.revalidate
        self._recorded: dict[ComponentNode, str] | None = None if reading.revalidate else dict(self.passed)

    def collect(self, seen: ClusterState) -> None:
        """Collect the verdicts since the last call; a verdict from before the run is no evidence."""
        is_old, self._is_first, self._context = self._is_first, False, seen.context
        ran = [(_RUN_BY[name], node, pods) for (name, node), pods in seen.pods.items() if name in _RUN_BY and node]
        by_uid = {pod["metadata"]["uid"]: ((name, node), pod) for name, node, pods in ran for pod in pods}
        by_pod = self._verdicts.get_all(by_uid, lambda uid: verdict_of(by_uid[uid][1]))
        for uid, verdict in by_pod.items():
            if verdict and uid not in seen.observed.void_pod_uids and self._collected.get(uid) != verdict:
                self._collected[uid] = verdict
                key, pod = by_uid[uid]
                if verdict.passed and key[0] == device_plugin_validation.NAME:
                    self.passed[key] = str(verdict)
                if not is_old:
                    self.evidence[key] = verdict_evidence(key, pod, verdict)

    def forget_repeated(self) -> None:
        """Remove repeated validations from the record, so that a failure does not leave the old success there."""
        if self._repeats:
            self.record()

    def record(self) -> None:
        """Write the record if it has changed: one request for any number of nodes."""
        if self.passed != self._recorded:
            # A node that left the inventory leaves the record, too. Nodes join during a run.
            known = {target.name for target in (*self._context.targets, *self._context.others)}
            of_targets = {key: verdict for key, verdict in self.passed.items() if key[1] in known}
            observe.write_validations(self._cluster, self._inventory, of_targets)
            self._recorded = dict(self.passed)

    def remove_succeeded(self, seen: ClusterState) -> bool:
        """Delete all succeeded pods in one request; return whether there were any.

        Pods of the first validation come from an earlier version, whose validator left some.
        """
        names = {component for (component, _), _ in superseded_pods(seen)}
        selected = [f"{STACK}={self._inventory.name},{COMPONENT} in ({','.join(VALIDATIONS)})"] if names else []
        selected += [f"{APP}={validator.CUDA_POD}"] if driver_validation.NAME in names else []
        for labels in selected:
            namespace, succeeded = self._inventory.cluster.namespace, "status.phase=Succeeded"
            self._cluster.delete_all(POD, namespace, label_selector=labels, field_selector=succeeded)
        return bool(selected)


def verdict_evidence(key: ComponentNode, pod: Manifest, verdict: Verdict) -> Evidence:
    """Return the output of a validation's vectorAdd on a node."""
    name = pod["metadata"]["name"]
    return Evidence(component=key[0], node=key[1], pod=name, passed=verdict.passed, lines=verdict.lines)


def explain(cluster: KubeClient, outcome: Outcome) -> tuple[Finding, ...]:
    """Return findings about failures and unfinished nodes; empty if every component is ready on every node."""
    states = outcome.result.states
    stack_kept = [state for state in states if state.reason.startswith(STACK_KEPT)]
    failed = [state for state in states if state.state is State.FAILED and state not in stack_kept]
    # An outdated pod whose component failed on another node is a consequence.
    outdated = [state for state in failed if state.reason.startswith(OUTDATED)]
    broken = {state.component for state in failed if state not in outdated}
    waiting = [state for state in outdated if state.component in broken]
    causes = [state for state in failed if state not in waiting]
    symptoms = [_symptom(cluster, outcome, state, read=index < MAX_LOGS) for index, state in enumerate(causes)]
    elsewhere = (state for state in states if not (is_kept(state) or state in stack_kept))
    blocked = (state for state in elsewhere if state.state is State.BLOCKED)
    awaited = {state.node for state in states if state.component == STARTUP_TAINT and state.node}
    targets = outcome.cluster_state.context.targets if awaited else ()
    tainted = [each.name for each in targets if each.name in awaited and each.facts and has_startup_taint(each.facts)]
    return (
        *failures.failure_findings(symptoms, (*waiting, *blocked)),
        *failures.driver_kept_findings(states, DRIVER_KEPT),
        *failures.stack_kept_findings(stack_kept, STACK_KEPT),
        *failures.deferred_validation_findings(states, NOT_VALIDATED),
        *failures.taint_findings(tainted),
        *unfinished_node_findings(
            outcome.cluster_state.context.facts.nodes, outcome.cluster_state.context.inventory.name
        ),
    )


def add_refusals(
    cluster: KubeClient, states: Mapping[ComponentNode, NodeState], seen: ClusterState
) -> Mapping[ComponentNode, NodeState]:
    """Return the states with why the API server refuses the pods of a DaemonSet; one request for each component."""
    lacking = {key: state for key, state in states.items() if state.reason.startswith(NO_POD)}
    first = {state.component: state for state in reversed(lacking.values())}
    reasons = {name: _refusal(cluster, state, seen) for name, state in islice(first.items(), MAX_LOGS)}
    return {
        **states,
        **{
            key: replace(state, reason=f"{state.reason}: {why}")
            for key, state in lacking.items()
            if (why := reasons.get(state.component))
        },
    }


def _refusal(cluster: KubeClient, state: NodeState, seen: ClusterState) -> str:
    """Return why the DaemonSet of a state could create no pod, such as by a quota; empty if it could, or is unknown."""
    target = next((each for each in seen.context.targets if each.name == state.node), None)
    daemonset = daemonset_on(target, state.component, seen) if target else None
    live = seen.observed.members.get(ref_of(daemonset)) if daemonset else None
    with contextlib.suppress(ProvisionError):
        return pod_view.creation_failure(cluster.events(live)) if live else ""
    return ""


def _symptom(cluster: KubeClient, outcome: Outcome, state: NodeState, *, read: bool) -> FailedState:
    key = (state.component, state.node)
    failed = (each for each in outcome.result.evidence if not each.passed and (each.component, each.node) == key)
    if evidence := next(failed, None):
        return FailedState(state, evidence.pod, evidence.lines)
    if log := outcome.crash_logs.get(key):
        return FailedState(state, log.pod, log.lines)
    pod = next((pod for pod in pods_of(state, outcome.cluster_state) if not pod_view.is_ready(pod)), None)
    lines: tuple[str, ...] = ()
    if pod is None:
        refusal = _refusal(cluster, state, outcome.cluster_state) if read else ""
        return FailedState(state, "", (refusal,) if refusal else ())
    container, ended = pod_view.failing_container(pod)
    with contextlib.suppress(ProvisionError):
        lines += pod_view.relevant_events(pod, cluster.events(pod)) if read else ()
    with contextlib.suppress(ProvisionError):
        lines += cluster.read_log(ref_of(pod), container, lines=LOG_LINES, previous=ended) if read and container else ()
    return FailedState(state, pod["metadata"]["name"], lines or (pod_view.cause(pod),))
