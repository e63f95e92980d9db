"""The API server's own dry run of what a plan would change: it has the last word."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import FieldConflictError, NotFoundError
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Refused, Rejected, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.planning.applyset import PART_OF, SET_ID
from gpu_provision.planning.diff import changes_between, edited_by_hand
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import effects
from gpu_provision.planning.states import Situation

_CONFIG_MAP = Kind("v1", "ConfigMap")


_PARALLEL_DRY_RUNS = 12


_MOST_NAMED = 4


def confirmed(cluster: Cluster, draft: Plan, seen: Situation) -> tuple[Plan, str]:
    """Return a plan as the server sees it, and what it said to who may not ask; empty if it answered all."""
    with RequestPool(cluster, _PARALLEL_DRY_RUNS) as pool:
        answers = list(pool.map(lambda change: _dry_run(cluster, change, seen.observed), draft.changes))
    sets = {answer.set_id for answer in answers if isinstance(answer, _Foreign)}
    owners = {set_id: owner for set_id in sorted(sets) if (owner := _owner(cluster, set_id))}
    taken: dict[str, list[ObjectRef]] = {}
    changes, problems = [], list(draft.findings)
    refusals = [answer.findings[0].evidence for answer in answers if isinstance(answer, Refused)]
    problems += [_unconfirmed(refusals)] if refusals else []
    for change, given in zip(draft.changes, answers, strict=True):
        if isinstance(given, _Foreign) and given.set_id in owners:
            taken.setdefault(given.set_id, []).append(change.ref)
            continue
        answer = given.change if isinstance(given, _Foreign) else given
        if isinstance(answer, Refused):
            changes.append(change)
        elif isinstance(answer, Finding):
            problems.append(answer)
        elif answer is None:
            changes.append(change)
        elif answer.fields:
            manifest = answer.manifest or {}
            undone = tuple(f"undoes an edit by {manager}" for manager in answer.takes_back_from)
            done = effects(manifest, answer.fields, seen)
            changes.append(replace(answer, nodes=done.nodes, effects=(*undone, *done.effects)))
    problems += [_taken(owners[set_id], refs, seen.context.inventory) for set_id, refs in taken.items()]
    return replace(draft, changes=tuple(changes), findings=tuple(problems)), next(iter(refusals), "")


class _Foreign(NamedTuple):
    """A change of an object that is marked as a member of another stack."""

    set_id: str
    change: Change


def _unconfirmed(refusals: list[str]) -> Finding:
    """A reader gets a plan, too; what only the server knows, such as conflicts, is not in it."""
    number = f"{len(refusals)} changes" if len(refusals) > 1 else "a change"
    return Finding(
        code="GP311",
        what=f"the API server was not asked about {number}: its dry run needs the right to write",
        evidence=refusals[0],
        fix="nothing, for a look; for apply, gpu-provision rbac prints the rights that it needs",
        severity=Severity.WARNING,
    )


def _dry_run(cluster: Cluster, change: Change, observed: Observed) -> Change | _Foreign | Finding | Refused | None:
    """Return None if the change stands as it is, the change as the server sees it, or why there is no answer."""
    if not _can_be_tried(change, observed) or change.manifest is None:
        return None
    try:
        return _tried(cluster, change, change.manifest, observed)
    except Refused as error:
        return _tolerated(error)
    except NotFoundError:
        return None
    except FieldConflictError as error:
        return _drift(cluster, change, observed, error)
    except Rejected as error:
        return replace(error.findings[0], where=str(change.ref))


def _tried(
    cluster: Cluster, change: Change, manifest: Manifest, observed: Observed
) -> Change | _Foreign | Finding | None:
    applied = cluster.apply(manifest, dry_run=True)
    if applied.created:
        return None
    before = observed.members.get(change.ref) or cluster.get(change.ref) or {}
    as_seen, set_id = _as_seen(change, before, applied.object), _other_set(change, before)
    return _Foreign(set_id, as_seen) if set_id else as_seen


def _tolerated(refusal: Refused) -> Refused:
    """Whoever may not write may plan; whom the server does not know may nothing."""
    if refusal.findings[0].code != _FORBIDDEN:
        raise refusal
    return refusal


_FORBIDDEN = "GP303"


def _other_set(change: Change, before: Manifest) -> str:
    """Return the id of the other stack's set that an object is in; empty if it is in none."""
    found = before.get("metadata", {}).get("labels", {}).get(PART_OF, "")
    wanted = (change.manifest or {})["metadata"].get("labels", {}).get(PART_OF, found)
    return "" if found == wanted else str(found)


def _owner(cluster: Cluster, set_id: str) -> ObjectRef | None:
    """Return the ConfigMap that stands for a stack, and is called as it; None for a stack that is gone.

    What that has left belongs to no stack.
    """
    parents = cluster.list(_CONFIG_MAP, label_selector=f"{SET_ID}={set_id}").items
    return ref_of(parents[0]) if parents else None


def _taken(owner: ObjectRef, refs: Sequence[ObjectRef], inventory: Inventory) -> Finding:
    """Two stacks that apply one object would undo each other for ever."""
    number = f"{len(refs)} objects" if len(refs) > 1 else "an object"
    more = f" and {len(refs) - _MOST_NAMED} more" if len(refs) > _MOST_NAMED else ""
    fleet = inventory.cluster.sandbox
    reset = shlex.join(("gpu-provision", "sandbox", "reset", *(() if fleet == "default" else ("--fleet", fleet))))
    return Finding(
        code="GP309",
        what=f"stack {owner.name} owns {number} that stack {inventory.name} declares, too",
        where=f"stack {owner.name} in namespace {owner.namespace}",
        evidence=", ".join(map(str, refs[:_MOST_NAMED])) + more,
        consequence="nothing is changed: each of both would undo the other's changes",
        fix=f"remove stack {owner.name} first: gpu-provision destroy -i FILE, its inventory (name: {owner.name})"
        f"{f', or {reset}' if fleet else ''}. If it is this one under its old name: give the inventory that name back",
    )


def _as_seen(change: Change, before: Manifest, after: Manifest) -> Change:
    return replace(change, action=Action.UPDATE, fields=changes_between(before, _of_kind(after, before)))


def _drift(cluster: Cluster, change: Change, observed: Observed, error: FieldConflictError) -> Change | Finding:
    """A hand edit of our own object is drift, and is undone; a field of any other manager is a conflict."""
    live = observed.members.get(change.ref)
    known = live is not None and bool(error.managers) and error.managers <= edited_by_hand(live)
    if live is None or change.manifest is None or not known:
        return replace(error.findings[0], where=str(change.ref))
    looked_at = {key: live["metadata"][key] for key in ("resourceVersion", "generation") if key in live["metadata"]}
    manifest = {**change.manifest, "metadata": {**change.manifest["metadata"], **looked_at}}
    try:
        applied = cluster.apply(manifest, dry_run=True, take_back=True)
    except Rejected as refused:
        return replace(refused.findings[0], where=str(change.ref))
    seen = _as_seen(change, live, applied.object)
    return replace(seen, manifest=manifest, takes_back_from=tuple(sorted(error.managers)))


def _of_kind(after: Manifest, before: Manifest) -> Manifest:
    return {**after, "apiVersion": before.get("apiVersion"), "kind": before.get("kind")} if before else after


def _can_be_tried(change: Change, observed: Observed) -> bool:
    applies = change.action in {Action.CREATE, Action.UPDATE} and change.ref.kind not in {"Node", "Pod"}
    return applies and not observed.lacks(change.ref)
