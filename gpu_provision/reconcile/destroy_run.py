"""Takes a stack off a cluster, stage by stage, and then looks whether anything is left.

What tells that there is something to remove goes last, so that a run that was killed is gone on with by the next.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpu_provision.destroy import findings
from gpu_provision.destroy.findings import foretold
from gpu_provision.destroy.nodes import on_node
from gpu_provision.destroy.plan import ACCESS, Stage
from gpu_provision.kube import leases, stack_objects
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import NotFound, Outdated
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.lock import WriteLock
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Refused, RunFailed
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change, RemovalResult
from gpu_provision.model.progress import Event, State
from gpu_provision.planning.applyset import STACK, component_of
from gpu_provision.reconcile import evict_gpu_pods
from gpu_provision.reconcile.destroy_discovery import Looked, Terms, look
from gpu_provision.reconcile.rollout import budget_kind
from gpu_provision.rollout.observe import pod_of
from gpu_provision.rollout.snapshot import Pod

_PARALLEL = 16
_TRIES = 10  # kubelets and controllers write to nodes, too
_POLL_SECONDS = 0.5
_TELL_SECONDS = 3.0  # of waiting before it is told what is waited for

Listen = Callable[[Event], None]


@dataclass(slots=True)
class Removing:
    """One removal. Make it, `execute` it once.

    Attributes:
        looked: What was found before the first write.
        listen: Told what happens, from the executing thread.
    """

    cluster: Cluster
    inventory: Inventory
    looked: Looked
    terms: Terms
    listen: Listen = lambda _: None
    _written: list[Change] = field(default_factory=list)
    _evicted: tuple[str, ...] = ()
    _stuck: list[Finding] = field(default_factory=list)
    _kept: tuple[Finding, ...] = ()
    _said: str = ""

    def execute(self) -> RemovalResult:
        """Remove the stack and audit what is left.

        Raises:
            RunFailed: Pods use GPUs, and may not be evicted.
            Locked: Another run writes.
            Unreachable, Refused: As the API server answers.
        """
        began, before = time.monotonic(), self.cluster.requests
        if refusal := self.refusal():
            raise RunFailed(refusal)
        kept, left = self.looked.plan.kept, tuple[Finding, ...]()
        if self.looked.plan.stages:
            for finding in self._foretold():
                self._say(f"{finding.where}: {finding.what}")
            self._remove()
            kept, left = self._audit()
        return RemovalResult(
            cluster=self.looked.remains.cluster,
            changes=tuple(self._written),
            evicted=self._evicted,
            requests=self.cluster.requests - before,
            seconds=time.monotonic() - began,
            findings=(*left, *kept),
        )

    def preview(self) -> RemovalResult:
        """Return what would be done, and why it would be refused."""
        refusal = self.refusal()
        pods = [pod for pods in _as_pods(self.looked.users).values() for pod in pods] if self.terms.evict else []
        return RemovalResult(
            cluster=self.looked.remains.cluster,
            changes=self.looked.plan.changes,
            evicted=tuple(map(str, pods)),
            requests=self.cluster.requests,
            findings=(*filter(None, [refusal]), *self._foretold(), *self.looked.plan.kept),
        )

    def _foretold(self) -> tuple[Finding, ...]:
        """Return what the evictions will and may mean; budgets count as far as we may read them."""
        if not (self.terms.evict and self.looked.users):
            return ()
        budgets: list[Manifest] = []
        with contextlib.suppress(Refused):
            budgets = list(self.cluster.list(budget_kind(self.cluster)).items)
        users = (pod for pods in self.looked.users.values() for pod in pods)
        return tuple(foretold(users, budgets))

    def refusal(self) -> Finding | None:
        """Return why the stack may not be removed: pods use its GPUs."""
        if self.terms.evict or not self.looked.users:
            return None
        return findings.gpus_in_use(_as_pods(self.looked.users))

    def _remove(self) -> None:
        stages = [stage for stage in self.looked.plan.stages if not stage.is_last]
        access = [stage for stage in stages if stage.components & frozenset(ACCESS)]
        own = Scope(POD, f"{STACK}={self.inventory.name}")
        with self._lock(), Mirror(self.cluster, [Scope(NODE), own]) as mirror:
            for stage in access:
                self._go(stage, mirror)
            if self.looked.users:
                self._evict()
            for stage in stages:
                if stage not in access:
                    self._go(stage, mirror)
        if not self._stuck:
            self._take_the_ground()

    def _lock(self) -> contextlib.AbstractContextManager[object]:
        """Return the lock; none where its namespace is gone, or going: then there is nobody to share it with."""
        home = self.cluster.get(ObjectRef("v1", "Namespace", "", self.inventory.cluster.namespace))
        if home is None or home["metadata"].get("deletionTimestamp"):
            return contextlib.nullcontext()
        seen = next(iter(self.looked.remains.lease.values()), None)
        return WriteLock(self.cluster, self.inventory, on_wait=self._say, planned_at=leases.version_of(seen))

    def _go(self, stage: Stage, mirror: Mirror) -> None:
        """Go through one stage."""
        self._say(f"removing {stage.title}")
        self._write(stage.changes)
        self._await_pods(stage, mirror)
        self._await_objects(change.ref for change in stage.changes if change.ref.kind in _SLOW)

    def _evict(self) -> None:
        evicting = evict_gpu_pods.evicting(self.cluster, frozenset(self.looked.users), self.terms.seconds, self._say)
        try:
            evicting.run()
        finally:
            self._evicted = tuple(evicting.evicted.values())

    def _take_the_ground(self) -> None:
        """Remove records and the lock's object, which has been given back, and then namespaces, as they are now.

        Raises:
            Locked: Another run has begun since.
        """
        now = look(self.cluster, self.inventory, self.terms, known=stack_objects.uids(self.looked.remains))
        if held := leases.read(self.cluster, self.inventory).lock:
            raise leases.locked(self.cluster, held)
        self._kept = now.plan.kept
        for stage in now.plan.stages:
            if stage.is_last:
                self._say(f"removing {stage.title}")
                self._write(change for change in stage.changes if change.ref.kind != "Namespace")
                self._write(change for change in stage.changes if change.ref.kind == "Namespace")
                self._await_objects(change.ref for change in stage.changes if change.action is Action.DELETE)

    def _write(self, changes: Iterable[Change]) -> None:
        with RequestPool(self.cluster, _PARALLEL) as pool:
            for change, written in [(change, pool.submit(self._do, change)) for change in changes]:
                if written.result():
                    self._written.append(change)

    def _do(self, change: Change) -> bool:
        """Make one change; return whether anything was written."""
        match change.action, change.ref.kind:
            case Action.DELETE, _:
                self.cluster.delete(change.ref)
            case _, "Node":
                return self._clean(change.ref)
            case _:
                with contextlib.suppress(NotFound, Outdated):
                    self.cluster.merge(change.ref, change.manifest or {})
        return True

    def _clean(self, ref: ObjectRef) -> bool:
        """Take off a node what is ours, as it is now."""
        for _ in range(_TRIES):
            node = self.cluster.get(ref)
            found = on_node(node, self.looked.stack) if node else None
            if found is None or found.is_clean:
                return False
            with contextlib.suppress(Outdated):
                self.cluster.merge(ref, found.patch())
                return True
        return False

    def _await_pods(self, stage: Stage, mirror: Mirror) -> None:
        began = time.monotonic()
        give_up = began + self.terms.seconds
        while left := _of(stage.components, mirror):
            if time.monotonic() > give_up:
                nodes = _nodes(mirror)
                self._stuck += [findings.not_gone(pod, nodes, self.terms.seconds) for pod in left]
                return
            if time.monotonic() - began > _TELL_SECONDS:
                more = f" and {len(left) - 1} more" if len(left) > 1 else ""
                why = findings.why_there(left[0], _nodes(mirror))
                self._say(f"waits for the end of {ref_of(left[0])}{more}: {why}")
            mirror.wait(_POLL_SECONDS * 2)

    def _await_objects(self, refs: Iterable[ObjectRef]) -> None:
        """Wait for objects that the server deletes in its own time."""
        for ref in refs:
            began = time.monotonic()
            while (item := self.cluster.get(ref)) is not None and item["metadata"].get("deletionTimestamp"):
                passed = time.monotonic() - began
                if passed > self.terms.seconds:
                    self._stuck.append(findings.not_gone(item, {}, self.terms.seconds))
                    break
                if passed > _TELL_SECONDS:
                    self._say(f"waits for the end of {ref}: {findings.why_there(item, {})}")
                time.sleep(_POLL_SECONDS)

    def _audit(self) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
        """Look once more at everything; return what stays with a reason, and what should not be there."""
        self._say("looking for what is left")
        now = look(self.cluster, self.inventory, self.terms)
        told = {finding.where for finding in self._stuck}
        left = [findings.left_over(change, "") for change in now.plan.changes if str(change.ref) not in told]
        kept = {
            finding.where + finding.what: finding for finding in (*self.looked.plan.kept, *self._kept, *now.plan.kept)
        }
        return tuple(kept.values()), (*self._stuck, *left)

    def _say(self, message: str) -> None:
        if message != self._said:
            self._said = message
            self.listen(Event(component="", node="", state=State.PROGRESSING, message=message))


_SLOW = frozenset({"CustomResourceDefinition"})


def _of(components: frozenset[str], mirror: Mirror) -> list[Manifest]:
    """Return the pods of some components, those that nobody has deleted first."""
    found = [pod for pod in mirror.of(POD).values() if component_of(pod) in components]
    return sorted(found, key=lambda pod: str(pod["metadata"].get("deletionTimestamp", "")))


def _nodes(mirror: Mirror) -> Mapping[str, Manifest]:
    return {ref.name: node for ref, node in mirror.of(NODE).items()}


def _as_pods(found: Mapping[str, tuple[Manifest, ...]]) -> dict[str, tuple[Pod, ...]]:
    return {node: tuple(map(pod_of, pods)) for node, pods in found.items()}
