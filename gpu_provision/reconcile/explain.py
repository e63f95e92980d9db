"""At the end of a run: every failure with its first cause, read from the pods that failed."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.diagnostics.failures import (
    FailedState,
    deferred_validation_findings,
    driver_kept_findings,
    failure_findings,
    stack_kept_findings,
    taint_findings,
)
from gpu_provision.diagnostics.pods import relevant_events
from gpu_provision.kube.client import Cluster
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.model.progress import Evidence, NodeState, State
from gpu_provision.planning import node_validation
from gpu_provision.planning.node_validation import has_startup_taint
from gpu_provision.planning.upgrades import KEEPS, OUTDATED, STAYS, is_kept
from gpu_provision.reconcile.run import Outcome
from gpu_provision.reconcile.states import NOT_VALIDATED
from gpu_provision.reconcile.steps import LOG_LINES, MOST_LOGS, pods_of
from gpu_provision.rollout.states import nodes_left_behind


def explain(cluster: Cluster, outcome: Outcome) -> tuple[Finding, ...]:
    """Return what went wrong, and what is left half done; empty if every component is ready on every node."""
    states = outcome.result.states
    staying_there = [state for state in states if state.reason.startswith(STAYS)]
    failed = [state for state in states if state.state is State.FAILED and state not in staying_there]
    waiting = _waiting_for_another_pod(failed)
    causes = [state for state in failed if state not in waiting]
    symptoms = [_symptom(cluster, outcome, state, read=index < MOST_LOGS) for index, state in enumerate(causes)]
    elsewhere = (state for state in states if not (is_kept(state) or state in staying_there))
    blocked = (state for state in elsewhere if state.state is State.BLOCKED)
    return (
        *failure_findings(symptoms, (*waiting, *blocked)),
        *driver_kept_findings(states, KEEPS),
        *stack_kept_findings(staying_there, STAYS),
        *deferred_validation_findings(states, NOT_VALIDATED),
        *taint_findings(_tainted(outcome)),
        *nodes_left_behind(outcome.seen.context.facts.nodes, outcome.seen.context.inventory.name),
    )


def _waiting_for_another_pod(failed: Iterable[NodeState]) -> tuple[NodeState, ...]:
    """Return the states of pods that were to be replaced after that of another node, which failed."""
    outdated = tuple(state for state in failed if state.reason.startswith(OUTDATED))
    broken = {state.component for state in failed if state not in outdated}
    return tuple(state for state in outdated if state.component in broken)


def _tainted(outcome: Outcome) -> list[str]:
    """Return the nodes that have the startup taint although the run is over."""
    awaited = {state.node for state in outcome.result.states if state.component == node_validation.NAME and state.node}
    targets = outcome.seen.context.targets if awaited else ()
    return [each.name for each in targets if each.name in awaited and each.facts and has_startup_taint(each.facts)]


def _symptom(cluster: Cluster, outcome: Outcome, state: NodeState, *, read: bool) -> FailedState:
    evidence = _evidence(outcome, state)
    if evidence:
        return FailedState(state, evidence.pod, evidence.lines)
    if said := outcome.said.get((state.component, state.node)):
        return FailedState(state, said.pod, said.lines)
    pod = next((pod for pod in pods_of(state, outcome.seen) if not pod_view.is_ready(pod)), None)
    if pod is None:
        return FailedState(state, "", ())
    told = (*_events(cluster, pod), *_log(cluster, pod)) if read else ()
    return FailedState(state, pod["metadata"]["name"], told or (pod_view.cause(pod),))


def _evidence(outcome: Outcome, state: NodeState) -> Evidence | None:
    found = (item for item in outcome.result.evidence if not item.passed)
    return next((item for item in found if (item.component, item.node) == (state.component, state.node)), None)


def _events(cluster: Cluster, pod: Manifest) -> tuple[str, ...]:
    try:
        return relevant_events(pod, cluster.events(pod))
    except ProvisionError:
        return ()


def _log(cluster: Cluster, pod: Manifest) -> tuple[str, ...]:
    container, ended = pod_view.failing_container(pod)
    if not container:
        return ()
    try:
        return cluster.log(ref_of(pod), container, lines=LOG_LINES, previous=ended)
    except ProvisionError:
        return ()
