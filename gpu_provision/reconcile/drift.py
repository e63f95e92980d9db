"""Drift: differences between declared and live objects, and their origin: an edit, or an inventory not yet applied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version

from gpu_provision.components.targets import observed_kernel
from gpu_provision.history import rollback
from gpu_provision.history.restore import restore_for_comparison
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import Ending
from gpu_provision.model.plan import Action, Change, Difference, Drift, FieldChange, FieldDrift, Origin
from gpu_provision.planning.applyset import digest_of, is_owned_by
from gpu_provision.planning.diff import differences
from gpu_provision.planning.managed_fields import (
    Owners,
    is_own_field,
    last_other_writer,
    owners_by_path,
    paths_overlap,
    writers_of,
)
from gpu_provision.planning.plan import applied_metadata, plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.verdicts import parse_verdict
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.session import Session

_WORST_FIRST = (Origin.DRIFT, Origin.UNKNOWN, Origin.PENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownState:
    """Live and applied objects, which distinguish drift from a changed inventory."""

    live: Mapping[ObjectRef, Manifest]  # live objects, those of changed nodes included
    applied: Mapping[ObjectRef, Manifest] | None = None  # objects as the last run applied them; None without a record


def find_drift(changes: Iterable[Change], known: KnownState) -> tuple[Difference, ...]:
    """Return every change of a plan with its origin.

    With a record of the applied objects, drift is a difference from that record. Without one the field managers decide:
    a field of this tool has the applied value, a field of another manager was edited. A missing field or object has no
    manager and may be either; for a pod template the digest decides.
    """
    drifts = tuple(_difference(change, known) for change in changes)
    if known.applied is None and any(each.origin is Origin.PENDING for each in drifts):
        # A validation that has not run belongs to the pending content, unless there is a record.
        return tuple(replace(each, origin=Origin.PENDING) if each.action is Action.RUN else each for each in drifts)
    return drifts


def _difference(change: Change, known: KnownState) -> Difference:
    fields = tuple(_field_drifts(change, known)) if change.action is Action.UPDATE else ()
    origins = sorted((each.origin for each in fields), key=_WORST_FIRST.index)
    return Difference(
        component=change.component,
        ref=change.ref,
        action=change.action,
        origin=origins[0] if origins else _object_origin(change, known),
        fields=fields,
        notes=() if change.action is Action.UPDATE else change.effects,
        nodes=change.nodes if change.action is Action.WAIT else (),
    )


def _object_origin(change: Change, known: KnownState) -> Origin:
    was_applied = None if known.applied is None else change.ref in known.applied
    if change.action is Action.CREATE and was_applied is None:
        return Origin.UNKNOWN if known.live else Origin.PENDING
    if change.action is Action.CREATE:
        return Origin.DRIFT if was_applied else Origin.PENDING
    if change.action is Action.DELETE:
        return Origin.DRIFT if was_applied is False else Origin.PENDING
    return Origin.PENDING if change.action is Action.RUN and was_applied is False else Origin.NOT_READY


def _field_drifts(change: Change, known: KnownState) -> Iterable[FieldDrift]:
    live = known.live.get(change.ref, {})
    by_path = owners_by_path(live)
    changed_since: frozenset[str] | None = None
    if known.applied is not None:
        applied = known.applied.get(change.ref)
        changed = differences(applied, live) if applied else ()
        changed_since = frozenset(each.path for each in changed if each.old != each.new)
    template = _template_origin(change.manifest, live)
    for field in change.fields:
        yield _field_drift(field, by_path, changed_since, template)


def _field_drift(
    field: FieldChange, by_path: Owners, changed_since: frozenset[str] | None, template: Origin
) -> FieldDrift:
    writers = writers_of(field.path, by_path)
    if changed_since is not None:
        origin = Origin.DRIFT if any(paths_overlap(field.path, each) for each in changed_since) else Origin.PENDING
    elif field.old is None:
        origin = template if field.path.startswith("spec.template.") else Origin.UNKNOWN
    elif is_own_field(writers):
        origin = Origin.PENDING
    else:
        origin = Origin.DRIFT if writers else Origin.UNKNOWN
    writer = last_other_writer(writers) if origin is Origin.DRIFT and field.old is not None else None
    return FieldDrift(path=field.path, declared=field.new, found=field.old, origin=origin, writer=writer)


def _template_origin(declared: Manifest | None, live: Manifest) -> Origin:
    """Return the origin of a missing field of a pod template, whose digest names the applied content."""
    wanted, applied = (digest_of(each.get("spec", {}).get("template") or {}) for each in (declared or {}, live))
    if not (wanted and applied):
        return Origin.UNKNOWN
    return Origin.DRIFT if wanted == applied else Origin.PENDING


_ENDINGS_AFTER_APPLY = frozenset({Ending.SUCCEEDED, Ending.FAILED})  # endings of runs that applied all objects
_CONFLICT, _DRY_RUN_SKIPPED = "GP304", "GP311"
_PROVEN_BY = "device_plugin_validation"  # the verdict that is on record


def read_drift(session: Session) -> Drift:
    """Return the drift of a stack; a finding names the changes whose dry run the API server refused.

    Raises UnreachableError, ForbiddenError.
    """
    reading = session.cluster_plan()
    changes = tuple(_find_changes(reading))
    name, objects = _last_run(session.cluster, reading) or ("", None)
    installed = reading.observed.is_installed or objects is not None
    live = {**reading.observed.members, **reading.observed.pods, **_live_nodes(session.cluster, changes)}
    applied = None if objects is None else {**objects, **_applied_pods(changes, reading, objects)}
    return Drift(
        inventory=reading.plan.inventory,
        release=reading.plan.release,
        cluster=reading.plan.cluster,
        differences=find_drift(changes, KnownState(live=live, applied=applied if installed else {})),
        applied=name,
        resource=reading.plan.resource,
        installed=installed,
        findings=(*(each for each in reading.plan.findings if _is_reported(each, reading)), *rebooted_nodes(reading)),
    )


def rebooted_nodes(reading: ClusterPlan) -> Iterator[Finding]:
    """Yield the nodes that are not ready since a boot after their validation, with the kernel that they run now."""
    observed, targets = reading.observed, reading.context.targets
    waiting = {node for change in reading.plan.changes if change.action is Action.WAIT for node in change.nodes}
    ready: dict[str, set[str]] = defaultdict(set)  # kernels by pool
    for target in targets:
        if target.name not in waiting:
            ready[target.pool.name].add(observed_kernel(target.facts))
    for target in targets:
        verdict = parse_verdict(observed.verdicts.get((_PROVEN_BY, target.name), ""))
        boot = target.facts.boot_id if target.facts else ""
        if target.name not in waiting or verdict is None or boot in {"", verdict.boot}:
            continue
        kernel, evidence = observed_kernel(target.facts), f"boot {boot}, validated in boot {verdict.boot}"
        if others := sorted(ready[target.pool.name] - {kernel}):
            evidence += f"; ready nodes of pool {target.pool.name} run {', '.join(others)}"
        yield Finding(
            code="GP520",
            what=f"{target.name} has booted since its driver was validated, and is not ready; it runs kernel {kernel}",
            where=f"node {target.name}",
            evidence=evidence,
            consequence="the driver is built for that kernel; without headers or an image the node has no GPU",
            fix="if it stays so, gpu-provision status names the cause; boot the previous kernel, and hold it: "
            "host_prerequisites: {hold_packages: true}",
            severity=Severity.WARNING,
        )


def _last_run(cluster: KubeClient, reading: ClusterPlan) -> tuple[str, Mapping[ObjectRef, Manifest]] | None:
    """Return the last run and the objects that it applied; None without a record of a run that applied all objects.

    Another version of the tool may render other objects from the same inventory; then the field managers are better.
    """
    now = reading.context.inventory
    last = rollback.read_history(cluster, now).last
    if last is None or last.ending not in _ENDINGS_AFTER_APPLY or last.tool != version("gpu-provision"):
        return None
    name = f"run {last.number}, {last.began}"
    desired = reading.desired
    if last.text != rollback.inventory_text(now):
        then = restore_for_comparison(last.text, now, name=name)
        if then is None:
            return None
        _, desired = prepare(then, reading.context.facts)
    return name, {ref_of(manifest): manifest for manifests in desired.values() for manifest in manifests}


def _find_changes(reading: ClusterPlan) -> Iterator[Change]:
    """Yield the changes that the server confirmed, and those in conflict with another field manager."""
    yield from reading.plan.changes
    in_conflict = {finding.where for finding in reading.plan.findings if finding.code == _CONFLICT}
    for change in plan(reading.context, reading.desired, reading.observed).changes:
        if change.action in _WRITTEN and str(change.ref) in in_conflict:
            yield change


_WRITTEN = frozenset({Action.CREATE, Action.UPDATE})


def _is_reported(finding: Finding, reading: ClusterPlan) -> bool:
    """Whether drift reports a finding: no advice on the inventory, and no conflict, which is a difference already."""
    if finding.code == _CONFLICT:
        return finding.where not in {str(ref) for ref in reading.observed.members}
    return finding.severity is Severity.ERROR or finding.code == _DRY_RUN_SKIPPED


def _applied_pods(
    changes: Iterable[Change], reading: ClusterPlan, applied: Mapping[ObjectRef, Manifest]
) -> Mapping[ObjectRef, Manifest]:
    pods = {change.ref: reading.observed.pods.get(change.ref, {}) for change in changes if change.ref.kind == POD.kind}
    daemonsets = [item for item in applied.values() if item["kind"] == "DaemonSet"]
    owned = ((ref, item) for ref, pod in pods.items() for item in daemonsets if pod and is_owned_by(pod, item))
    return {ref: applied_metadata(item) for ref, item in owned}


def _live_nodes(cluster: KubeClient, changes: tuple[Change, ...]) -> Mapping[ObjectRef, Manifest]:
    wanted = {change.ref for change in changes if change.ref.kind == NODE.kind}
    return {ref_of(node): node for node in cluster.list(NODE).items if ref_of(node) in wanted} if wanted else {}
