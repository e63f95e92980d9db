"""Remove a stack stage by stage, and audit what is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_provision.destroy.discovery import DestroyOptions, discover
from gpu_provision.destroy.nodes import find_remnants, gpu_users
from gpu_provision.destroy.plan import ACCESS, DestroyPlan, DestroyStage
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.kube import lock
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError, NotFoundError
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.lease import lease_version
from gpu_provision.kube.lock import WriteLock
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, RunFailedError, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change, DestroyResult
from gpu_provision.model.progress import Event, State
from gpu_provision.model.text import join_limited
from gpu_provision.nodes.drain import Drainer
from gpu_provision.planning.applyset import STACK, component_of
from gpu_provision.planning.drain_rules import DrainPlan
from gpu_provision.reconcile.rollout import budget_kind
from gpu_provision.rollout.observe import budgets_of, pod_of
from gpu_provision.rollout.predicates import name_pods
from gpu_provision.rollout.snapshot import DisruptionBudget, Pod

_PARALLEL = 16
_TRIES = 10  # of a write to a node, which kubelets and controllers write to as well
_POLL_SECONDS = 0.5
_QUIET_SECONDS = 3.0  # before the first message about a wait
_SLOW = frozenset({"CustomResourceDefinition"})

Say = Callable[[str], None]
Listen = Callable[[Event], None]


@dataclass(slots=True)
class DestroyRunner:
    """One removal. Call `execute` once."""

    cluster: KubeClient
    inventory: Inventory
    plan: DestroyPlan  # made before the first write
    options: DestroyOptions
    listen: Listen = lambda _: None  # gets progress events, in the executing thread
    _written: list[Change] = field(default_factory=list)
    _evicted: tuple[str, ...] = ()
    _stuck: list[Finding] = field(default_factory=list)
    _kept: tuple[Finding, ...] = ()
    _last_message: str = ""

    def execute(self) -> DestroyResult:
        """Remove the stack and audit what is left.

        Raises RunFailedError if pods use GPUs without permission to evict; LockedError, UnreachableError,
        ForbiddenError.
        """
        began, before = time.monotonic(), self.cluster.requests
        if refusal := self.refusal():
            raise RunFailedError(refusal)
        kept, left = self.plan.kept, tuple[Finding, ...]()
        if self.plan.stages:
            for finding in self._eviction_warnings():
                self._report_progress(f"{finding.where}: {finding.what}")
            self._remove()
            kept, left = self._audit()
        return DestroyResult(
            cluster=self.plan.objects.cluster,
            changes=tuple(self._written),
            evicted=self._evicted,
            requests=self.cluster.requests - before,
            seconds=time.monotonic() - began,
            findings=(*left, *kept),
        )

    def preview(self) -> DestroyResult:
        """Return the result of a dry run, including a refusal."""
        evicted = self._gpu_pods() if self.options.evict else ()
        return DestroyResult(
            cluster=self.plan.objects.cluster,
            changes=self.plan.changes,
            evicted=tuple(str(pod_of(pod)) for pod in evicted),
            requests=self.cluster.requests,
            findings=(*filter(None, [self.refusal()]), *self._eviction_warnings(), *self.plan.kept),
        )

    def _gpu_pods(self) -> Iterator[Manifest]:
        return (pod for pods in self.plan.users.values() for pod in pods)

    def _eviction_warnings(self) -> tuple[Finding, ...]:
        """Return the warnings about evictions; without permission to read budgets, only about pods."""
        if not (self.options.evict and self.plan.users):
            return ()
        budgets: list[Manifest] = []
        with contextlib.suppress(ForbiddenError):
            budgets = list(self.cluster.list(budget_kind(self.cluster)).items)
        return tuple(eviction_warnings(self._gpu_pods(), budgets))

    def refusal(self) -> Finding | None:
        """Return the error that pods use GPUs, if it blocks the removal."""
        if self.options.evict or not self.plan.users:
            return None
        users = {node: tuple(map(pod_of, pods)) for node, pods in self.plan.users.items()}
        return Finding(
            code=codes.GPUS_IN_USE,
            what="pods use GPUs; nothing was removed",
            where=f"Node {', '.join(users)}",
            evidence="; ".join(f"{node}: {name_pods(pods)}" for node, pods in users.items()),
            consequence="without the driver they would fail, and could not restart",
            fix="end them, or evict them within their PodDisruptionBudgets: --evict",
        )

    def _remove(self) -> None:
        stages = [stage for stage in self.plan.stages if not stage.is_last]
        access = [stage for stage in stages if stage.components & ACCESS]
        own = Scope(POD, f"{STACK}={self.inventory.name}")
        with self._lock(), InformerCache(self.cluster, [Scope(NODE), own]) as cache:
            for stage in access:
                self._run_stage(stage, cache)
            if self.plan.users:
                drainer = gpu_pod_eviction(
                    self.cluster, frozenset(self.plan.users), self.options.seconds, self._report_progress
                )
                drainer.run()
                self._evicted = tuple(drainer.evicted.values())
            for stage in stages:
                if stage not in access:
                    self._run_stage(stage, cache)
        if not self._stuck:
            self._remove_last()

    def _lock(self) -> contextlib.AbstractContextManager[object]:
        """Return the lock; none without its namespace or during its deletion, where no other run can acquire it."""
        home = self.cluster.get(ObjectRef("v1", "Namespace", "", self.inventory.cluster.namespace))
        if home is None or home["metadata"].get("deletionTimestamp"):
            return contextlib.nullcontext()
        seen = next(iter(self.plan.objects.lease.values()), None)
        return WriteLock(self.cluster, self.inventory, on_wait=self._report_progress, planned_at=lease_version(seen))

    def _run_stage(self, stage: DestroyStage, cache: InformerCache) -> None:
        self._report_progress(f"removing {stage.title}")
        self._write(stage.changes)
        self._await_pods(stage, cache)
        self._await_objects(change.ref for change in stage.changes if change.ref.kind in _SLOW)

    def _remove_last(self) -> None:
        """Remove records and the released lock, then namespaces. Raises LockedError."""
        now = discover(self.cluster, self.inventory, self.options, known=self.plan.objects.uids)
        if held := lock.read_lock(self.cluster, self.inventory).lock:
            raise lock.locked_error(self.cluster, held)
        self._kept = now.kept
        for stage in now.stages:
            if stage.is_last:
                self._report_progress(f"removing {stage.title}")
                self._write(change for change in stage.changes if change.ref.kind != "Namespace")
                self._write(change for change in stage.changes if change.ref.kind == "Namespace")
                self._await_objects(change.ref for change in stage.changes if change.action is Action.DELETE)

    def _write(self, changes: Iterable[Change]) -> None:
        with RequestPool(self.cluster, _PARALLEL) as pool:
            for change, written in [(change, pool.submit(self._apply, change)) for change in changes]:
                if written.result():
                    self._written.append(change)

    def _apply(self, change: Change) -> bool:
        """Write one change; return whether a write was needed."""
        if change.ref.kind == "Node":
            return self._clean_node(change.ref)
        if change.action is Action.DELETE:
            self.cluster.delete(change.ref)
        else:
            with contextlib.suppress(NotFoundError, ConflictError):
                self.cluster.merge_patch(change.ref, change.manifest or {})
        return True

    def _clean_node(self, ref: ObjectRef) -> bool:
        """Remove the stack's fields from the present node; return whether a write was needed."""
        for _ in range(_TRIES):
            node = self.cluster.get(ref)
            remnants = find_remnants(node, self.plan.stack) if node else None
            if remnants is None or remnants.is_clean:
                return False
            with contextlib.suppress(ConflictError):
                self.cluster.merge_patch(ref, remnants.patch())
                return True
        return False

    def _await_pods(self, stage: DestroyStage, cache: InformerCache) -> None:
        began = time.monotonic()
        while left := _pods_of(stage.components, cache):
            nodes, passed = {ref.name: node for ref, node in cache.list(NODE).items()}, time.monotonic() - began
            if passed > self.options.seconds:
                self._stuck += [_remaining_finding(pod, nodes, self.options.seconds) for pod in left]
                return
            if passed > _QUIET_SECONDS:
                pods = join_limited((str(ref_of(pod)) for pod in left), 1)
                self._report_progress(f"waiting for {pods} to be deleted: {explain_remaining(left[0], nodes)}")
            cache.wait(_POLL_SECONDS * 2)

    def _await_objects(self, refs: Iterable[ObjectRef]) -> None:
        """Wait for objects that the API server deletes asynchronously."""
        for ref in refs:
            began = time.monotonic()
            while (item := self.cluster.get(ref)) is not None and item["metadata"].get("deletionTimestamp"):
                passed = time.monotonic() - began
                if passed > self.options.seconds:
                    self._stuck.append(_remaining_finding(item, {}, self.options.seconds))
                    break
                if passed > _QUIET_SECONDS:
                    self._report_progress(f"waiting for {ref} to be deleted: {explain_remaining(item, {})}")
                time.sleep(_POLL_SECONDS)

    def _audit(self) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
        """Discover once more; return the warnings about kept objects, and the errors about remaining ones."""
        self._report_progress("looking for what is left")
        now = discover(self.cluster, self.inventory, self.options)
        stuck = {finding.where for finding in self._stuck}
        left = list[Finding]()
        for change in now.changes:
            marks = ", ".join(field.path for field in change.fields) or "marks"
            found = Finding(
                code=codes.LEFT_OVER,
                what=f"still has: {marks}" if change.action is Action.UPDATE else "is still there",
                where=str(change.ref),
                fix="run again, which removes what is left",
            )
            left += [found] if found.where not in stuck else []
        every = (*self.plan.kept, *self._kept, *now.kept)
        kept = {finding.where + finding.what: finding for finding in every}
        return tuple(kept.values()), (*self._stuck, *left)

    def _report_progress(self, message: str) -> None:
        if message != self._last_message:
            self._last_message = message
            self.listen(Event(component="", node="", state=State.PROGRESSING, message=message))


def _pods_of(components: frozenset[str], cache: InformerCache) -> list[Manifest]:
    """Return the pods of some components, those without a deletionTimestamp first."""
    found = [pod for pod in cache.list(POD).values() if component_of(pod) in components]
    return sorted(found, key=lambda pod: str(pod["metadata"].get("deletionTimestamp", "")))


def gpu_pod_eviction(cluster: KubeClient, nodes: frozenset[str], seconds: int, say: Say) -> Drainer:
    """Return the drain of all pods that use GPUs on some nodes."""
    claims = ResourceClaims(cluster)

    def plan(pods: Iterable[Manifest]) -> DrainPlan:
        there = [pod for pod in pods if node_of(pod) in nodes]
        found = [pod for on_node in gpu_users(there, nodes, claims.list_for_pods(there)).values() for pod in on_node]
        ending = [pod for pod in found if pod["metadata"].get("deletionTimestamp")]
        return DrainPlan(tuple(pod for pod in found if pod not in ending), tuple(ending))

    def late(left: DrainPlan, refusals: Mapping[str, str], seconds: int) -> tuple[Finding, ...]:
        pods = [pod_of(pod, refusals=refusals) for pod in left.leaving]
        return tuple(
            Finding(
                code=codes.GPUS_IN_USE,
                what=f"the pod still uses a GPU {seconds} s after the eviction request; drivers were not removed",
                where=f"Pod {pod.namespace}/{pod.name}",
                evidence=pod.refusal or ("it is still terminating" if pod.is_terminating else ""),
                fix="end it, or change its PodDisruptionBudget, and run again, which resumes",
            )
            for pod in pods
        )

    title = "evicting pods that use GPUs"
    return Drainer(cluster, Scope(POD), plan, late, seconds=seconds, title=title, on_progress=say)


def _remaining_finding(item: Manifest, nodes: Mapping[str, Manifest], seconds: int) -> Finding:
    ref = ref_of(item)
    return Finding(
        code=codes.NOT_GONE,
        what=f"it is still there {seconds} s after the request to delete it",
        where=str(ref),
        evidence=explain_remaining(item, nodes),
        fix=f"kubectl get {ref.kind.lower()} {ref.name}{f' -n {ref.namespace}' if ref.namespace else ''} -o yaml shows"
        " why; then run again",
    )


def explain_remaining(item: Manifest, nodes: Mapping[str, Manifest]) -> str:
    """Return the first cause why a deleted object remains."""
    metadata = item["metadata"]
    if not metadata.get("deletionTimestamp"):
        owners = [f"{owner['kind']} {owner['name']}" for owner in metadata.get("ownerReferences") or ()]
        return f"waits for the garbage collector, which deletes what {', '.join(owners)} owned" if owners else ""
    if finalizers := metadata.get("finalizers"):
        return f"waits for the finalizer {', '.join(finalizers)}"
    node = nodes.get(node_of(item))
    if node is not None and not any(each["type"] == "Ready" and each["status"] == "True" for each in _conditions(node)):
        return f"its node {node['metadata']['name']} is not ready, so it is unknown whether its containers have ended"
    # The conditions of a namespace name its content and the finalizers that block it.
    true = (each for each in _conditions(item) if each.get("status") == "True" and each["type"] != "Ready")
    messages = (each.get("message", "") for each in true)
    return "; ".join(filter(None, messages)) or f"is terminating since {metadata['deletionTimestamp']}"


def _conditions(item: Manifest) -> list[Mapping[str, str]]:
    return (item.get("status") or {}).get("conditions") or []


def eviction_warnings(users: Iterable[Manifest], budgets: Iterable[Manifest]) -> Iterator[Finding]:
    """Yield warnings about evicted pods without a controller, and about budgets that block evictions."""
    known = budgets_of(budgets)
    pods = [pod for pod in (pod_of(each, budgets=known) for each in users) if not pod.is_terminating]
    if lost := [pod for pod in pods if not pod.owner]:
        yield Finding(
            code=codes.UNMANAGED_PODS,
            what="--evict deletes these pods, and no controller recreates them",
            where=f"Pod {name_pods(lost)}",
            consequence="data inside these pods is lost",
            fix="let them end first, or save their manifests: kubectl get pod NAME -o yaml",
            severity=Severity.WARNING,
        )
    by_budget: dict[tuple[str, DisruptionBudget], list[Pod]] = {}
    for pod in pods:
        for budget in pod.budgets:
            by_budget.setdefault((pod.namespace, budget), []).append(pod)
    for (namespace, budget), covered in sorted(by_budget.items()):
        if budget.allowed >= len(covered):
            continue
        now, will = (f"{budget.allowed} of {len(covered)} pods", "may") if budget.allowed > 0 else ("no pod", "will")
        yield Finding(
            code=codes.BUDGET_HOLDS,
            what=f"a PodDisruptionBudget allows the eviction of {now} now",
            where=f"PodDisruptionBudget {namespace}/{budget.name}",
            evidence=f"pods that use GPUs: {name_pods(covered)}",
            consequence=f"the removal {will} wait, and end with drivers in place after --timeout, unless others of its "
            "pods become ready elsewhere",
            fix="run more replicas on other nodes, or change the PodDisruptionBudget",
            severity=Severity.WARNING,
        )
