"""Apply and prune the objects of a run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError, NotFoundError
from gpu_provision.kube.informer import InformerCache
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import InvalidError
from gpu_provision.model.plan import Action, Change
from gpu_provision.planning.states import Desired, Key
from gpu_provision.reconcile.observer import WATCHED
from gpu_provision.reconcile.plan import ClusterPlan

_PARALLEL = 16
_REPAIRS = 3  # times that one run creates an object again that is deleted meanwhile
_PER_NODE = frozenset({"Node", "Pod"})

# Objects of one rank are applied at the same time, after those of lower ranks.
# A binding comes after its role: to whom the server does not trust blindly, it compares what the role grants.
# Pods come before their DaemonSet, see `planning.pod_metadata`.
_RANKS: Mapping[str, int] = {
    "Namespace": 0,
    "CustomResourceDefinition": 1,
    "Role": 1,
    "ClusterRole": 1,
    "DaemonSet": 3,
    "Deployment": 3,
}
_OTHER_RANK = 2


class Applier:
    """Applies and prunes, and remembers the outcome.

    Attributes:
        members: Live objects of the stack as last answered by the API server.
        rejected: Component -> why the API server refused an object of it.
        written: Every object written, in order.
    """

    def __init__(self, cluster: KubeClient, reading: ClusterPlan) -> None:
        """Start from what was read; nothing is written."""
        self._cluster = cluster
        self._applied = _manifests(reading.desired)
        self.members: dict[ObjectRef, Manifest] = dict(reading.observed.members)
        self.rejected: dict[Key, str] = {}
        self._repaired: Counter[ObjectRef] = Counter()
        self.written: list[ObjectRef] = []  # appended to by several threads; a count would lose some

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply every object to be created or updated, and patch pods, rank by rank."""
        ranked: dict[int, list[Change]] = {}
        for change in changes:
            if change.action in {Action.CREATE, Action.UPDATE} and change.ref.kind != "Node":
                ranked.setdefault(_RANKS.get(change.ref.kind, _OTHER_RANK), []).append(change)
        for rank in sorted(ranked):
            self._each(self._apply, ranked[rank])

    def prune(self, changes: Iterable[Change]) -> None:
        """Delete every object that is no longer wanted; what is in a namespace goes before the namespace.

        The rights to delete there can go with the namespace.
        """
        doomed = [each for each in changes if each.action is Action.DELETE and each.ref.kind not in _PER_NODE]
        for is_last in (False, True):
            self._each(self._delete, [change for change in doomed if (change.ref.kind == "Namespace") is is_last])

    def _each(self, write: Callable[[Change], None], changes: Collection[Change]) -> None:
        """Write several objects at a time. Raises the first error, in the order of the changes."""
        with RequestPool(self._cluster, _PARALLEL) as pool:
            writing = [pool.submit(write, change) for change in changes]
        for one in writing:
            one.result()

    def follow(self, desired: Desired, live: Collection[ObjectRef]) -> None:
        """Apply what became wanted or changed since facts about nodes came in, and what is not ``live`` any more.

        What is deleted again and again stays away in the end.
        """
        wanted = _manifests(desired)
        gone = {ref for ref in wanted if ref in self.members and ref not in live}
        lost = {ref for ref in gone if self._repaired[ref] < _REPAIRS}
        self._repaired.update(lost)
        self.apply(
            Change(component=component, action=Action.CREATE, ref=ref, manifest=manifest)
            for ref, (component, manifest) in wanted.items()
            if ref in lost or self._applied.get(ref) != (component, manifest)
        )
        self._applied = wanted

    def are_shown(self, mirror: InformerCache) -> bool:
        """Whether live copies show what was written of the kinds that a run follows."""
        written = {ref: self.members[ref] for ref in self.written if ref.type in WATCHED and ref in self.members}
        live = {ref: item for kind in WATCHED for ref, item in mirror.of(kind).items()} if written else {}
        return all(ref in live and _generation(live[ref]) >= _generation(item) for ref, item in written.items())

    def _apply(self, change: Change) -> None:
        try:
            self.write(change)
        except InvalidError as error:
            self.rejected[change.component, ""] = f"{change.ref}: {error.findings[0].evidence or error}"

    def write(self, change: Change) -> None:
        """Apply one object. Raises InvalidError."""
        ref, manifest = change.ref, change.manifest
        if manifest is None:
            return
        if ref.kind == "Pod":
            with contextlib.suppress(NotFoundError, ConflictError):  # gone: the next plan looks at the one in its place
                self._cluster.merge(ref, {"metadata": manifest["metadata"]})
                self.written.append(ref)
            return
        applied = self._cluster.apply(manifest, take_back=bool(change.takes_back_from))
        self.members[ref] = {"apiVersion": ref.api_version, "kind": ref.kind, **applied.object}
        self.written.append(ref)

    def _delete(self, change: Change) -> None:
        uid = self.members.pop(change.ref, {}).get("metadata", {}).get("uid", "")
        with contextlib.suppress(ConflictError):  # it was created again: the next plan looks at that one
            self._cluster.delete(change.ref, uid=uid)
        self.written.append(change.ref)


def _generation(live: Manifest) -> int:
    return int(live["metadata"].get("generation") or 0)


def _manifests(desired: Desired) -> dict[ObjectRef, tuple[str, Manifest]]:
    return {
        ref_of(manifest): (component, manifest)
        for component, manifests in desired.items()
        for manifest in manifests
        if manifest["kind"] not in _PER_NODE
    }
