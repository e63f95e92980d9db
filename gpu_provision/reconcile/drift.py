"""What in a cluster is not as declared, and who made it so: reads, and writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from gpu_provision.history import rollback
from gpu_provision.history.restore import restore_for_comparison
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import Ending
from gpu_provision.model.plan import Action, Change, Drift
from gpu_provision.planning.applyset import belongs
from gpu_provision.planning.drift import KnownState, find_drift
from gpu_provision.planning.plan import plan
from gpu_provision.planning.pod_metadata import as_applied
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Desired
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.session import Session

_APPLIED = frozenset({Ending.SUCCEEDED, Ending.FAILED})  # all objects are applied before anything is awaited
_CONFLICT, _NOT_TRIED = "GP304", "GP311"


def read(session: Session) -> Drift:
    """Return the drift of a stack; what the API server refuses to try is judged without its word, and said so.

    Raises:
        Unreachable, Refused: The cluster cannot be asked.
    """
    reading = session.reading()
    changes = tuple(_changes(reading))
    last = _last_run(session.cluster, reading)
    installed = reading.observed.is_installed or last is not None
    live = {**reading.observed.members, **reading.observed.pods, **_nodes(session.cluster, changes)}
    applied = {**last.objects, **_pods(changes, reading, last.objects)} if last else None
    return Drift(
        inventory=reading.plan.inventory,
        release=reading.plan.release,
        cluster=reading.plan.cluster,
        differences=find_drift(changes, KnownState(live=live, applied=applied if installed else {})),
        applied=last.name if last else "",
        resource=reading.plan.resource,
        installed=installed,
        findings=tuple(each for each in reading.plan.findings if _is_to_be_told(each, reading)),
    )


@dataclass(frozen=True, slots=True)
class _Last:
    """The last run, and what it applied."""

    name: str
    objects: Mapping[ObjectRef, Manifest]


def _last_run(cluster: Cluster, reading: ClusterPlan) -> _Last | None:
    """Return what the last run applied; None if no record tells, or if it did not get to apply everything.

    Another version of the tool may have made other objects of the same inventory; then the field managers tell more.
    """
    now = reading.context.inventory
    last = rollback.read_history(cluster, now).last
    if last is None or last.ending not in _APPLIED or last.tool != version("gpu-provision"):
        return None
    name = f"run {last.number}, {last.began}"
    if last.text == rollback.inventory_text(now):
        return _Last(name, _objects(reading.desired))
    then = restore_for_comparison(last.text, now, name=name)
    return _Last(name, _objects(prepare(then, reading.context.facts)[1])) if then else None


def _objects(desired: Desired) -> Mapping[ObjectRef, Manifest]:
    return {ref_of(manifest): manifest for manifests in desired.values() for manifest in manifests}


def _changes(reading: ClusterPlan) -> Iterator[Change]:
    """Yield what differs: as the server confirmed it, and what it did not since another manager has the field."""
    yield from reading.plan.changes
    in_conflict = {finding.where for finding in reading.plan.findings if finding.code == _CONFLICT}
    for change in plan(reading.context, reading.desired, reading.observed).changes:
        if change.action in _WRITTEN and str(change.ref) in in_conflict:
            yield change


_WRITTEN = frozenset({Action.CREATE, Action.UPDATE})


def _is_to_be_told(finding: Finding, reading: ClusterPlan) -> bool:
    """Leave out advice on the inventory, which is for plans; a conflict is among the differences."""
    if finding.code == _CONFLICT:
        return finding.where not in {str(ref) for ref in reading.observed.members}
    return finding.severity is Severity.ERROR or finding.code == _NOT_TRIED


def _pods(
    changes: Iterable[Change], reading: ClusterPlan, applied: Mapping[ObjectRef, Manifest]
) -> Mapping[ObjectRef, Manifest]:
    """Return the pods whose metadata differ, as the DaemonSets that were applied have them."""
    pods = {change.ref: reading.observed.pods.get(change.ref, {}) for change in changes if change.ref.kind == POD.kind}
    daemonsets = [item for item in applied.values() if item["kind"] == "DaemonSet"]
    return {ref: as_applied(item) for ref, pod in pods.items() for item in daemonsets if pod and belongs(pod, item)}


def _nodes(cluster: Cluster, changes: tuple[Change, ...]) -> Mapping[ObjectRef, Manifest]:
    """Return the nodes whose labels differ, as they are; one LIST if there are any."""
    wanted = {change.ref for change in changes if change.ref.kind == NODE.kind}
    return {ref_of(node): node for node in cluster.list(NODE).items if ref_of(node) in wanted} if wanted else {}
