"""Read a cluster and plan: desired and observed state, and the API server's dry run of each change."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpu_provision.diagnostics.pods import node_of
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import FieldConflictError, NotFoundError
from gpu_provision.kube.observe import CONFIG_MAP, ListedObjects, find_absent, observe, observe_facts
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import Manifest, ObjectRef, ObservedState, RenderContext, ref_of
from gpu_provision.model.codes import ABSENT, MACHINE_CONFIG_UNREACHED, MACHINE_POOL_SHARED, MACHINE_POOL_STUCK
from gpu_provision.model.findings import Finding, ForbiddenError, InvalidError, Severity
from gpu_provision.model.inventory import ALL, Inventory, RunSelection
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.model.progress import NodeState
from gpu_provision.model.text import join_limited
from gpu_provision.planning.applyset import PART_OF, SET_ID, component_of
from gpu_provision.planning.diff import changes_between
from gpu_provision.planning.managed_fields import manual_editors
from gpu_provision.planning.plan import plan_state, with_effects
from gpu_provision.planning.prepare import (
    find_references,
    inventory_findings,
    missing_findings,
    prepare,
    unread_findings,
)
from gpu_provision.planning.states import ClusterState, ComponentNode, Desired, cluster_state, evaluate_states
from gpu_provision.planning.upgrades import DRIVER, is_kept, needs_rollout
from gpu_provision.planning.verdicts import RUNS_IN, verdict_of
from gpu_provision.rbac import review

_PARALLEL_DRY_RUNS = 12
_MAX_NAMED = 4
_FORBIDDEN = "GP303"


def server_dry_run(cluster: KubeClient, draft: Plan, seen: ClusterState) -> tuple[Plan, str]:
    """Return the plan after the API server's dry run, and its refusal; empty if the server refused none."""
    with RequestPool(cluster, _PARALLEL_DRY_RUNS) as pool:
        answers = list(pool.map(lambda change: _dry_run(cluster, change, seen.observed), draft.changes))
    owners = dict[str, ObjectRef]()  # a stack that is gone owns nothing
    for set_id in sorted({answer.set_id for answer in answers if isinstance(answer, _Foreign)}):
        for owner in cluster.list(CONFIG_MAP, label_selector=f"{SET_ID}={set_id}").items[:1]:
            owners[set_id] = ref_of(owner)
    taken: dict[str, list[ObjectRef]] = {}
    changes, problems = [], list(draft.findings)
    refusals = [answer.findings[0].evidence for answer in answers if isinstance(answer, ForbiddenError)]
    problems += [_skipped_dry_run_finding(refusals)] if refusals else []
    for change, result in zip(draft.changes, answers, strict=True):
        if isinstance(result, _Foreign) and result.set_id in owners:
            taken.setdefault(result.set_id, []).append(change.ref)
            continue
        answer = result.change if isinstance(result, _Foreign) else result
        if answer is None or isinstance(answer, ForbiddenError):
            changes.append(change)
        elif isinstance(answer, Finding):
            problems.append(answer)
        elif answer.fields:
            undone = tuple(f"undoes an edit by {manager}" for manager in answer.takes_back_from)
            update = with_effects(answer, seen)
            changes.append(replace(update, effects=(*undone, *update.effects)))
    problems += [
        _shared_objects_finding(owners[set_id], refs, seen.context.inventory) for set_id, refs in taken.items()
    ]
    return replace(draft, changes=tuple(changes), findings=tuple(problems)), next(iter(refusals), "")


class _Foreign(NamedTuple):
    """A change of an object that belongs to another stack."""

    set_id: str
    change: Change


def _skipped_dry_run_finding(refusals: list[str]) -> Finding:
    number = f"{len(refusals)} changes" if len(refusals) > 1 else "a change"
    return Finding(
        code="GP311",
        what=f"the server-side dry run of {number} was skipped: write permission missing",
        evidence=refusals[0],
        fix="nothing for plan and drift; for apply, grant the roles that gpu-provision rbac prints",
        severity=Severity.WARNING,
    )


def _dry_run(  # noqa: PLR0911 - one answer after the other
    cluster: KubeClient, change: Change, observed: ObservedState
) -> Change | _Foreign | Finding | ForbiddenError | None:
    """Return None if the dry run confirms the change, the change as the server answers it, or the error.

    A user without write permission may plan; an unknown user may not.
    """
    applies = change.action in {Action.CREATE, Action.UPDATE} and change.ref.kind not in {"Node", "Pod"}
    if not applies or change.manifest is None or observed.is_absent(change.ref):
        return None
    try:
        applied = cluster.apply(change.manifest, dry_run=True)
        if applied.created:
            return None
        before = observed.members.get(change.ref) or cluster.get(change.ref) or {}
    except ForbiddenError as error:
        if error.findings[0].code != _FORBIDDEN:
            raise
        return error
    except NotFoundError:
        return None
    except FieldConflictError as error:
        return _resolve_conflict(cluster, change, observed, error)
    except InvalidError as error:
        return replace(error.findings[0], where=str(change.ref))
    as_seen = _server_change(change, before, applied.object)
    set_id = before.get("metadata", {}).get("labels", {}).get(PART_OF)
    wanted = change.manifest["metadata"].get("labels", {}).get(PART_OF, set_id)
    return _Foreign(set_id, as_seen) if set_id and set_id != wanted else as_seen


def _shared_objects_finding(owner: ObjectRef, refs: Sequence[ObjectRef], inventory: Inventory) -> Finding:
    number = f"{len(refs)} objects" if len(refs) > 1 else "an object"
    fleet = inventory.cluster.sandbox
    reset = shlex.join(("gpu-provision", "sandbox", "reset", *(() if fleet == "default" else ("--fleet", fleet))))
    return Finding(
        code="GP309",
        what=f"stack {owner.name} owns {number} that stack {inventory.name} declares, too",
        where=f"stack {owner.name} in namespace {owner.namespace}",
        evidence=join_limited(map(str, refs), _MAX_NAMED),
        consequence="nothing is changed: each stack would undo the other's changes",
        fix=f"remove stack {owner.name} first: gpu-provision destroy -i FILE, its inventory (name: {owner.name})"
        f"{f', or {reset}' if fleet else ''}. If the inventory was renamed: give it the name {owner.name} again",
    )


def _server_change(change: Change, before: Manifest, after: Manifest) -> Change:
    kind = {"apiVersion": before.get("apiVersion"), "kind": before.get("kind")} if before else {}
    return replace(change, action=Action.UPDATE, fields=changes_between(before, {**after, **kind}))


def _resolve_conflict(
    cluster: KubeClient, change: Change, observed: ObservedState, error: FieldConflictError
) -> Change | Finding:
    """Return the change that undoes a manual edit of a stack's object; a field of another manager is a conflict."""
    live = observed.members.get(change.ref)
    is_by_hand = live is not None and bool(error.managers) and error.managers <= manual_editors(live)
    if live is None or change.manifest is None or not is_by_hand:
        return replace(error.findings[0], where=str(change.ref))
    looked_at = {key: live["metadata"][key] for key in ("resourceVersion", "generation") if key in live["metadata"]}
    manifest = {**change.manifest, "metadata": {**change.manifest["metadata"], **looked_at}}
    try:
        applied = cluster.apply(manifest, dry_run=True, take_back=True)
    except InvalidError as refused:
        return replace(refused.findings[0], where=str(change.ref))
    seen = _server_change(change, live, applied.object)
    return replace(seen, manifest=manifest, takes_back_from=tuple(sorted(error.managers)))


def read_and_plan(
    cluster: KubeClient,
    inventory: Inventory,
    *,
    revalidate: bool = False,
    host_drivers: Mapping[str, str] | None = None,
    part: RunSelection = ALL,
) -> ClusterPlan:
    """Read a cluster and plan.

    A cluster that is as declared costs a fixed number of requests. Each changed object costs one more, its server-side
    dry run; a new object costs none. Drivers that a run replaces cost a fixed number more.

    ``revalidate``: repeat passed validations. ``host_drivers``: as in ClusterFacts.
    Raises UnreachableError, ForbiddenError, InvalidError.
    """
    listed: ListedObjects = {}
    facts = replace(observe_facts(cluster, inventory, listed), host_drivers=host_drivers or {})
    context, desired = prepare(inventory, facts, part)
    wanted = [ref_of(manifest) for manifests in desired.values() for manifest in manifests]
    parent = ref_of(desired["prerequisites"][-1])
    observed = observe(cluster, inventory, facts, wanted, parent, listed)
    if revalidate:
        observed = _void_validations(observed, part)
    seen = cluster_state(context, desired, observed)
    return replace(build_plan(cluster, desired, seen, evaluate_states(seen), revalidate=revalidate), listed=listed)


def build_plan(
    cluster: KubeClient,
    desired: Desired,
    seen: ClusterState,
    known: Mapping[ComponentNode, NodeState],
    *,
    revalidate: bool = False,
) -> ClusterPlan:
    """Plan for an observed state, without another read.

    ``desired``: the final manifests, while ``seen`` has those for now. ``known``: the states of ``seen``.
    """
    draft = plan_state(seen, known, inventory_findings(seen.context))
    draft = replace(draft, findings=(*draft.findings, *_absent_findings(cluster, desired, seen, draft, known)))
    confirmed, refusal = server_dry_run(cluster, draft, seen)
    reading = ClusterPlan(seen.context, desired, seen.observed, confirmed, revalidate, refusal)
    # The rollout also reports a changed driver that keeps its previous content.
    is_driver_kept = any(is_kept(state) for (component, _), state in known.items() if component == DRIVER)
    if not needs_rollout(known) and not (is_driver_kept and reading.plan.changes_of(DRIVER)):
        return reading
    from gpu_provision.reconcile.rollout import with_rollout

    return with_rollout(cluster, reading, seen, known)


def _absent_findings(
    cluster: KubeClient, desired: Desired, seen: ClusterState, draft: Plan, known: Mapping[ComponentNode, NodeState]
) -> Iterator[Finding]:
    pod_references = find_references(desired)
    starts_pods = {Action.CREATE, Action.UPDATE, Action.RUN}
    changing = {change.ref for change in draft.changes if change.action in starts_pods}
    if needs_rollout(known):
        changing |= {ref_of(manifest) for manifest in desired[DRIVER]}
    inventory, facts = seen.context.inventory, seen.context.facts
    missing, unread = find_absent(cluster, inventory, facts, (each.ref for each in pod_references))
    yield from missing_findings(pod_references, missing, changing, seen.observed.namespaces)
    yield from unread_findings(unread)


def _void_validations(observed: ObservedState, part: RunSelection) -> ObservedState:
    void = frozenset(
        pod["metadata"]["uid"]
        for pod in observed.pods.values()
        for validation, runs_in in RUNS_IN.items()
        if component_of(pod) == runs_in and part.has(validation, node_of(pod))
    )
    passed = {key: verdict for key, verdict in observed.verdicts.items() if not part.has(*key)}
    return replace(observed, verdicts=passed, void_pod_uids=void)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Desired state, observed state, and the plan from one to the other."""

    context: RenderContext
    desired: Desired
    observed: ObservedState
    plan: Plan
    revalidate: bool = False  # whether validations run again although they have passed
    dry_run_refusal: str = ""  # the server's message if the user may not do a dry run
    listed: ListedObjects = field(default_factory=dict)  # lists from which a run can start its watches


def void_failed_validations(reading: ClusterPlan) -> ClusterPlan:
    """Return a plan in which failed vectorAdds are void, so that a run repeats them."""
    runs_in = frozenset(RUNS_IN.values())
    void = reading.observed.void_pod_uids | {
        pod["metadata"]["uid"]
        for pod in reading.observed.pods.values()
        if component_of(pod) in runs_in and (verdict := verdict_of(pod)) and not verdict.passed
    }
    return replace(reading, observed=replace(reading.observed, void_pod_uids=void))


def blocking_findings(reading: ClusterPlan) -> tuple[Finding, ...]:
    """Return the errors of a plan that block a run."""
    return tuple(item for item in reading.plan.findings if item.severity is Severity.ERROR and item.code in _BLOCKING)


_OF_POOLS = MACHINE_POOL_SHARED, MACHINE_POOL_STUCK, MACHINE_CONFIG_UNREACHED
_BLOCKING = frozenset(
    {ABSENT, "GP304", "GP305", "GP309", "GP382", "GP415", "GP421", "GP422", "GP423", "GP424", *_OF_POOLS}
)


def missing_permissions(cluster: KubeClient, reading: ClusterPlan) -> Finding | None:
    """Return the permissions that the account lacks to execute a plan; None if it has all."""
    inventory, namespaces = reading.context.inventory, reading.observed.namespaces
    return review.missing_for_run(
        cluster, inventory, reading.plan, reading.desired, namespaces=namespaces, refused=reading.dry_run_refusal
    )
