"""Reads a cluster and plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from gpu_provision.diagnostics.pods import node_of
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.observe import (
    Listed,
    absent,
    observe,
    observe_facts,
)
from gpu_provision.model.cluster import ref_of
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import ALL, Inventory, RunSelection
from gpu_provision.model.plan import Action, Plan
from gpu_provision.model.progress import NodeState
from gpu_provision.planning.applyset import component_of
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan_of
from gpu_provision.planning.prepare import findings, prepare
from gpu_provision.planning.references import absences, not_looked_for, references
from gpu_provision.planning.states import Desired, Key, Situation, situation, states
from gpu_provision.planning.upgrades import DRIVER, calls_for_rollout, is_kept
from gpu_provision.planning.validation import RUNS_IN
from gpu_provision.reconcile.dry_run import confirmed
from gpu_provision.reconcile.reading import Reading

_NOT_READ: Mapping[str, str] = MappingProxyType({})

Unfinished = tuple[Situation, Mapping[Key, NodeState]]
"""The nodes of a situation on which something is not ready or to be done, and where everything stands there."""


def read(
    cluster: Cluster,
    inventory: Inventory,
    *,
    revalidate: bool = False,
    host_drivers: Mapping[str, str] = _NOT_READ,
    part: RunSelection = ALL,
) -> Reading:
    """Read a cluster and plan.

    A cluster that is as declared costs a fixed number of requests; objects that differ cost one more each: the
    server's own dry run, which has the last word on what an apply would change. Objects of a stack that is new cost
    nothing if nothing has their names. Drivers that are to be replaced cost a
    fixed number more.

    Args:
        revalidate: Forget which validations have passed, so that they run again.
        host_drivers: As in ClusterFacts.
        part: What to look after.

    Raises:
        Unreachable, Refused, Rejected: As the API server answers.
    """
    listed: Listed = {}
    facts = replace(observe_facts(cluster, inventory, listed), host_drivers=host_drivers)
    context, desired = prepare(inventory, facts, part)
    wanted = [ref_of(manifest) for manifests in desired.values() for manifest in manifests]
    parent = ref_of(desired["prerequisites"][-1])
    observed = observe(cluster, inventory, facts, wanted, parent, listed)
    if revalidate:
        observed = _unvalidated(observed, part)
    seen = situation(context, desired, observed)
    return replace(planned(cluster, desired, seen, states(seen), revalidate=revalidate), listed=listed)


def planned(  # noqa: PLR0913 - what is known
    cluster: Cluster,
    desired: Desired,
    seen: Situation,
    known: Mapping[Key, NodeState],
    *,
    unfinished: Unfinished | None = None,
    revalidate: bool = False,
) -> Reading:
    """Plan for what is known already; of that, nothing is read again.

    Args:
        desired: In the end; the situation has what is desired for now.
        known: Where everything stands in it.
        unfinished: What of it a plan has to look at, if that is known; nodes that are finished are left out.
        revalidate: As for `read`.
    """
    part, on_nodes = unfinished or (seen, known)
    draft = plan_of(seen, on_nodes, findings(seen.context), part)
    draft = replace(draft, findings=(*draft.findings, *_absent(cluster, desired, seen, draft, on_nodes)))
    answered, refused = confirmed(cluster, draft, seen)
    reading = Reading(seen.context, desired, seen.observed, answered, revalidate, refused)
    if not _rollout_is_due(reading, on_nodes):
        return reading
    from gpu_provision.reconcile.preview import with_rollout

    return with_rollout(cluster, reading, seen, known)


def _rollout_is_due(reading: Reading, known: Mapping[Key, NodeState]) -> bool:
    """Whether a run rolls something out, or changes a driver that stays as it is all the same, which has to be said."""
    kept = any(is_kept(state) for (component, _), state in known.items() if component == DRIVER)
    return calls_for_rollout(known) or (kept and bool(reading.plan.of(DRIVER)))


def _absent(
    cluster: Cluster, desired: Desired, seen: Situation, draft: Plan, known: Mapping[Key, NodeState]
) -> Iterator[Finding]:
    """Yield which ConfigMaps and Secrets are missing that pods refer to."""
    found = references(desired)
    changing = {change.ref for change in draft.changes if change.action in _STARTS_PODS}
    if calls_for_rollout(known):
        changing |= {ref_of(manifest) for manifest in desired[DRIVER]}
    inventory, facts = seen.context.inventory, seen.context.facts
    missing, unread = absent(cluster, inventory, facts, (each.ref for each in found))
    yield from absences(found, missing, changing, seen.observed.namespaces)
    yield from not_looked_for(unread)


_STARTS_PODS = frozenset({Action.CREATE, Action.UPDATE, Action.RUN})


def _unvalidated(observed: Observed, part: RunSelection) -> Observed:
    """Return what was observed with no vectorAdd of a part that counts."""
    void = frozenset(
        pod["metadata"]["uid"]
        for pod in observed.pods.values()
        for validation, runs_in in RUNS_IN.items()
        if component_of(pod) == runs_in and part.has(validation, node_of(pod))
    )
    passed = {key: verdict for key, verdict in observed.passed.items() if not part.has(*key)}
    return replace(observed, passed=passed, void=void)
