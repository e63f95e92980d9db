"""The controller: while it leads, one worker thread reconciles each GPUStack of the cluster."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version

from gpu_provision.destroy.discovery import DestroyOptions, discover
from gpu_provision.destroy.runner import DestroyRunner
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.informer import InformerCache, Scope, scope_of_object
from gpu_provision.kube.lease import LEADER, LeaderElector
from gpu_provision.kube.observe import NODE
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event
from gpu_provision.operator.client import add_finalizer, remove_finalizer
from gpu_provision.operator.reconciler import StackReconciler
from gpu_provision.operator.schedule import Backoff, OverlapChecker, ReconcileRequest
from gpu_provision.operator.stack import (
    CONTROLLER_NAME,
    CONTROLLER_NAMESPACE,
    DEFAULT_LEASE,
    LEADER_VERSION,
    STACK,
    inventory_of,
    is_released,
    namespace_changed,
    namespace_of,
)
from gpu_provision.operator.status import Reason, StackProblem, add_later_problem, problem_of
from gpu_provision.operator.telemetry import ControllerMetrics, EventSink, StackEvent, StatusWriter
from gpu_provision.reconcile.session import Session

Retarget = Callable[[Inventory], Inventory]  # sets the inventory's cluster to the controller's own

_ASK_AGAIN_SECONDS = 60.0
_STEP_SECONDS = 10.0
_RENEW_SECONDS = LEADER.renew_seconds  # how often the leader checks its lease
_DEAD_SECONDS = 180.0  # longer than any request with retries
_STACKS, _NODES = Scope(STACK), Scope(NODE)


class StackWorker:
    """Reconciles one stack by its last request, in its own thread, which also calls ``on_event``."""

    def __init__(
        self,
        cluster: KubeClient,
        request: ReconcileRequest,
        *,
        retarget: Retarget,
        on_event: EventSink,
        leadership: LeaderElector | None = None,
    ) -> None:
        """Prepare; the caller starts `thread`. Writes need the ``leadership`` besides the stack's lock."""
        self._cluster, self._request, self._leadership = cluster, request, leadership
        self._retarget, self._on_event = retarget, on_event
        self._reporter = StatusWriter(cluster, request.stack, on_event)
        self.figures = self._reporter.metrics
        self._backoff = Backoff()
        self._condition = threading.Condition()
        self._reconciler: StackReconciler | None = None
        self._rolled_back: Mapping[int, StackProblem] = {}  # by generation: a failed spec is not tried again
        self._stopped = False
        self.thread = threading.Thread(target=self._work, name=f"stack {request.name}", daemon=True)

    @property
    def name(self) -> str:
        """Return the name of the stack."""
        return self._request.name

    @property
    def watch_problem(self) -> str:
        """Return why the cache may be stale; empty if it is not."""
        return reconciler.watch_problem if (reconciler := self._reconciler) else ""

    def set_request(self, request: ReconcileRequest) -> None:
        """Replace the request; a run of the previous one ends after its current step."""
        with self._condition:
            if request.is_equivalent(self._request):
                return
            self._request = request
        self._wake()

    def stop(self) -> None:
        """End after the current step."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()
        if reconciler := self._reconciler:
            reconciler.wake()

    def _work(self) -> None:
        while not self._stopped:
            request = self._request
            try:
                self._reconcile(request)
            except ProvisionError as error:
                self._backoff.record_failure(time.monotonic())
                rolled_back = self._rolled_back.get(request.generation)
                self._report_problem(request, add_later_problem(rolled_back, problem_of(error.findings)))
            except Exception as error:  # noqa: BLE001 - a bug with one stack must not stop the others
                self._backoff.record_failure(time.monotonic())
                message = "".join(traceback.format_exception(error))
                self._on_event(StackEvent(reason="Mistake", message=message, stack=request.name, is_warning=True))
                first_line = f"{type(error).__name__}: {error}".splitlines()[0]
                problem = StackProblem(Reason.INTERNAL_ERROR, f"a mistake in gpu-provision itself: {first_line}")
                self._report_problem(request, problem)

    def _reconcile(self, request: ReconcileRequest) -> None:
        if request.is_deleting:
            self._delete(request)
            return
        if request.blocked:
            self._report_problem(request, request.blocked)
            return
        inventory, findings = inventory_of(request.stack)
        moved = namespace_changed(request.stack, inventory) if inventory else None
        problem = problem_of([*findings, *filter(None, [moved])], Reason.INVALID)
        if problem or inventory is None:
            self._report_problem(request, problem)
            return
        lease = self._leadership.name if self._leadership else DEFAULT_LEASE
        other_lease = lease if lease != DEFAULT_LEASE else ""
        add_finalizer(self._cluster, ref_of(request.stack), inventory.cluster.namespace, other_lease)
        reconciler = self._reconciler = StackReconciler(
            request,
            self._retarget(inventory),
            self._reporter,
            self._on_event,
            is_superseded=lambda: self._is_superseded(request),
            leadership=self._leadership,
            rolled_back=self._rolled_back.get(request.generation),
        )
        try:
            reconciler.run()
        except BaseException:
            self._rolled_back = {request.generation: reconciler.rolled_back} if reconciler.rolled_back else {}
            raise
        finally:
            self._reconciler = None
        self._rolled_back = {}
        self._backoff.reset()

    def _delete(self, request: ReconcileRequest) -> None:
        """Remove the finalizer: at once for a released stack, else after the stack is uninstalled."""
        if is_released(request.stack) or self._is_removed(request):
            remove_finalizer(self._cluster, ref_of(request.stack))
            self._pause(request, _ASK_AGAIN_SECONDS)

    def _is_removed(self, request: ReconcileRequest) -> bool:
        """Uninstall the stack from its recorded namespace; return whether the audit finds nothing left."""
        inventory = inventory_of(request.stack)[0] or _minimal_inventory(request.stack)
        namespace = namespace_of(request.stack) or inventory.cluster.namespace
        inventory = self._retarget(replace(inventory, cluster=replace(inventory.cluster, namespace=namespace)))
        cluster = Session(inventory, leadership=self._leadership).cluster  # its own connection: the lock fences it

        def listen(event: Event) -> None:
            self._on_event(StackEvent(reason="Removing", message=event.message, stack=request.name))

        options = DestroyOptions()
        runner = DestroyRunner(cluster, inventory, discover(cluster, inventory, options), options, listen)
        self._reporter.report(request.observation(is_working=True), time.monotonic())
        if problem := problem_of(runner.execute().findings, Reason.REMOVING):
            self._backoff.record_failure(time.monotonic())
            self._report_problem(request, problem)
            return False
        return True

    def _report_problem(self, request: ReconcileRequest, problem: StackProblem | None) -> None:
        """Report why the stack is not reconciled, and wait for another request or for the backoff."""
        while (wait := self._reporter.report(request.observation(problem=problem), time.monotonic())) < float("inf"):
            self._pause(request, wait)
            if self._is_superseded(request):
                return
        self._pause(request, self._backoff.seconds_left(time.monotonic()) or None)

    def _pause(self, request: ReconcileRequest, seconds: float | None) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._is_superseded(request), seconds)

    def _is_superseded(self, request: ReconcileRequest) -> bool:
        return self._stopped or request is not self._request


def _minimal_inventory(stack: Manifest) -> Inventory:
    """Return an inventory that suffices to remove a stack with an invalid spec."""
    spec = stack.get("spec")
    cluster = spec.get("cluster") if isinstance(spec, dict) else None
    home = {"cluster": cluster} if isinstance(cluster, dict) else {}
    inventory = inventory_of({**stack, "spec": home})[0] or inventory_of({**stack, "spec": {}})[0]
    if inventory is None:
        raise AssertionError  # an empty declaration is valid
    return inventory


class Controller:
    """One controller replica; one of them leads."""

    def __init__(
        self, cluster: KubeClient, *, retarget: Retarget, on_event: EventSink, namespace: str = CONTROLLER_NAMESPACE
    ) -> None:
        """Prepare without any request. Several threads call ``on_event``."""
        self._cluster, self._retarget, self._on_event = cluster, retarget, on_event
        self._lease = ObjectRef("coordination.k8s.io/v1", "Lease", namespace, CONTROLLER_NAME)
        self._workers: dict[str, StackWorker] = {}
        self._overlaps = OverlapChecker()
        self._stopping = threading.Event()
        self._cache: InformerCache | None = None
        self._is_leader = False
        self._active_at = time.monotonic()

    def metrics(self) -> ControllerMetrics:
        """Return the current metrics; from any thread."""
        figures = {worker.name: worker.figures for worker in list(self._workers.values())}
        return ControllerMetrics(self._is_leader, self._cluster.requests, self._cluster.retries, figures)

    def liveness_problem(self) -> str:
        """Return why this process must restart; empty if it need not."""
        if dead := [worker.name for worker in list(self._workers.values()) if not worker.thread.is_alive()]:
            return f"the worker of {', '.join(dead)} has ended"
        silent = time.monotonic() - self._active_at
        return f"the controller has been silent for {silent:.0f} s" if silent > _DEAD_SECONDS else ""

    def readiness_problem(self) -> str:
        """Return why this replica cannot lead or take over now, or may have a stale cache; empty if it is ready."""
        if silent := self._cluster.health.silent_seconds:
            return f"the API server has not answered for {silent:.0f} s"
        own = cache.problem if (cache := self._cache) else ""
        return next(filter(None, [own, *(worker.watch_problem for worker in list(self._workers.values()))]), "")

    def stop(self) -> None:
        """End after the current steps, and release lease and locks; from any thread."""
        self._stopping.set()
        self._cluster.cancel_retries()
        if cache := self._cache:
            cache.notify()

    def run(self) -> None:
        """Acquire the leadership, lead, and start over after its loss, until `stop` is called."""
        while not self._stopping.is_set():
            self._active_at = time.monotonic()
            try:
                elector = LeaderElector(self._cluster, self._lease, {LEADER_VERSION: version("gpu-provision")})
                if self._acquire_lease(elector):
                    self._lead(elector)
            except ProvisionError as error:
                self._on_event(StackEvent(reason="Waiting", message=str(error), is_warning=True))
                self._stopping.wait(_RENEW_SECONDS)

    def _acquire_lease(self, elector: LeaderElector) -> bool:
        """Wait until this controller leads; return False if it stops before."""
        scope = scope_of_object(self._lease)
        with self._watch(scope) as cache:
            while not self._stopping.is_set():
                self._active_at = time.monotonic()
                left = elector.acquire(next(iter(cache.list(scope).values()), None))
                if not left:
                    return True
                cache.wait(left)
        return False

    @contextlib.contextmanager
    def _watch(self, *scopes: Scope) -> Iterator[InformerCache]:
        with InformerCache(self._cluster, scopes, keep=trim) as cache:
            self._cache = cache
            try:
                yield cache
            finally:
                self._cache = None

    def _lead(self, elector: LeaderElector) -> None:
        self._on_event(StackEvent(reason="Leading", message=f"{elector.identity} leads"))
        self._is_leader = True
        try:
            with self._watch(_STACKS) as cache:
                while not self._stopping.is_set():
                    self._active_at = time.monotonic()
                    if elector.lost:
                        message = f"{elector.identity} leads no more: {elector.name} was not renewed in time"
                        self._on_event(StackEvent(reason="Following", message=message, is_warning=True))
                        return
                    if dead := self.liveness_problem():
                        raise RuntimeError(dead)  # a bug: the process ends, and the kubelet restarts it
                    self._assign_requests(cache, elector)
                    spent = time.monotonic() - self._active_at
                    cache.wait(_RENEW_SECONDS)
                    self._stopping.wait(min(spent, _RENEW_SECONDS))  # many events, one iteration
        finally:
            self._is_leader = False
            self._stop_workers(list(self._workers))
            elector.release()

    def _assign_requests(self, cache: InformerCache, elector: LeaderElector) -> None:
        """Start a worker for every new stack, and give each worker its current stack."""
        stacks = {str(stack["metadata"]["uid"]): stack for stack in cache.list(_STACKS).values()}
        self._stop_workers([uid for uid in self._workers if uid not in stacks])
        overlaps: Mapping[str, StackProblem] = {}
        if len(stacks) > 1:
            cache.watch(_NODES)
            overlaps = self._overlaps.find_overlaps(stacks.values(), cache.list(_NODES).values())
        for uid, stack in stacks.items():
            request = ReconcileRequest(stack, overlaps.get(stack["metadata"]["name"]))
            if uid in self._workers:
                self._workers[uid].set_request(request)
            else:
                worker = StackWorker(
                    self._cluster, request, retarget=self._retarget, on_event=self._on_event, leadership=elector
                )
                self._workers[uid] = worker
                worker.thread.start()

    def _stop_workers(self, uids: Iterable[str]) -> None:
        """Stop workers and wait for them; their writes still need the leadership."""
        until = time.monotonic() + _STEP_SECONDS
        going = [self._workers.pop(uid) for uid in uids]
        for worker in going:
            worker.stop()
        for worker in going:
            worker.thread.join(max(0.0, until - time.monotonic()))
