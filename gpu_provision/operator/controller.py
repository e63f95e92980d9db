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
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.lease import LEADER, LeaderElector
from gpu_provision.kube.observe import NODE
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event
from gpu_provision.operator.client import add_finalizer, remove_finalizer
from gpu_provision.operator.queue import Backoff, OverlapChecker, ReconcileRequest
from gpu_provision.operator.reconciler import StackReconciler
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
from gpu_provision.operator.status import Reason, StackProblem, problem_of, since
from gpu_provision.operator.telemetry import ControllerMetrics, EventSink, StackEvent, StatusWriter
from gpu_provision.reconcile.observer import scope_of_object
from gpu_provision.reconcile.session import Session

Aim = Callable[[Inventory], Inventory]  # says which cluster an inventory means: the one that the controller looks after

_ASK_AGAIN_SECONDS = 60.0
_STEP_SECONDS = 10.0
_RENEW_SECONDS = LEADER.renew_seconds  # after which the leader looks whether it still leads
_DEAD_SECONDS = 180.0  # longer than any request that is repeated
_STACKS, _NODES = Scope(STACK), Scope(NODE)


class StackWorker:
    """Carries out the last request for one stack, in a thread of its own; ``take`` is called from there."""

    def __init__(
        self,
        cluster: KubeClient,
        request: ReconcileRequest,
        *,
        aim: Aim,
        take: EventSink,
        leadership: LeaderElector | None = None,
    ) -> None:
        """Prepare; `thread` has to be started. Writes rest on the ``leadership``, besides the stack's lock."""
        self._cluster, self._request, self._aim, self._take, self._leadership = cluster, request, aim, take, leadership
        self._reporter = StatusWriter(cluster, request.stack, take)
        self.figures = self._reporter.figures  # what is counted of the stack
        self._backoff = Backoff()
        self._news = threading.Condition()
        self._reconciler: StackReconciler | None = None
        self._rolled_back: Mapping[int, StackProblem] = {}  # by generation: what failed is not tried again
        self._stopped = False
        self.thread = threading.Thread(target=self._work, name=f"stack {request.name}", daemon=True)

    @property
    def name(self) -> str:
        """Return the stack's name."""
        return self._request.name

    @property
    def watch_problem(self) -> str:
        """Return why what is known of the stack may be out of date; empty if all is well."""
        return reconciler.watch_problem if (reconciler := self._reconciler) else ""

    def take(self, request: ReconcileRequest) -> None:
        """Replace the request; a run for the one before ends after its current step."""
        with self._news:
            if request.is_equivalent(self._request):
                return
            self._request = request
        self._wake()

    def stop(self) -> None:
        """End after the current step."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()
        if reconciler := self._reconciler:
            reconciler.wake()

    def _work(self) -> None:
        while not self._stopped:
            request = self._request
            try:
                self._reconcile(request)
            except ProvisionError as error:
                self._backoff.failed(time.monotonic())
                rolled_back = self._rolled_back.get(request.generation)
                self._report_problem(request, since(rolled_back, problem_of(error.findings)))
            except Exception as error:  # noqa: BLE001 - a bug about one stack must not stop the others
                self._backoff.failed(time.monotonic())
                message = "".join(traceback.format_exception(error))
                self._take(StackEvent(reason="Mistake", message=message, stack=request.name, is_warning=True))
                first_line = f"{type(error).__name__}: {error}".splitlines()[0]
                problem = StackProblem(Reason.MISTAKE, f"a mistake in gpu-provision itself: {first_line}")
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
            self._aim(inventory),
            self._reporter,
            self._take,
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
        self._backoff.succeeded()

    def _delete(self, request: ReconcileRequest) -> None:
        """Let the object go: at once if what it has installed is to stay, else only when nothing of that is left."""
        if is_released(request.stack) or self._is_removed(request):
            remove_finalizer(self._cluster, ref_of(request.stack))
            self._pause(request, _ASK_AGAIN_SECONDS)

    def _is_removed(self, request: ReconcileRequest) -> bool:
        """Take the stack off the cluster, from where it was installed; say whether the audit finds nothing left."""
        inventory = inventory_of(request.stack)[0] or _minimal_inventory(request.stack)
        namespace = namespace_of(request.stack) or inventory.cluster.namespace
        inventory = self._aim(replace(inventory, cluster=replace(inventory.cluster, namespace=namespace)))
        cluster = Session(inventory, leadership=self._leadership).cluster  # a connection of its own: the lock fences it

        def listen(event: Event) -> None:
            self._take(StackEvent(reason="Removing", message=event.message, stack=request.name))

        options = DestroyOptions()
        runner = DestroyRunner(cluster, inventory, discover(cluster, inventory, options), options, listen)
        self._reporter.report(request.observation(is_working=True), time.monotonic())
        if problem := problem_of(runner.execute().findings, Reason.REMOVING):
            self._backoff.failed(time.monotonic())
            self._report_problem(request, problem)
            return False
        return True

    def _report_problem(self, request: ReconcileRequest, problem: StackProblem | None) -> None:
        """Say why nothing is done, and wait until something else is asked, or until it is time to try again."""
        while (wait := self._reporter.report(request.observation(problem=problem), time.monotonic())) < float("inf"):
            self._pause(request, wait)
            if self._is_superseded(request):
                return
        self._pause(request, self._backoff.left(time.monotonic()) or None)

    def _pause(self, request: ReconcileRequest, seconds: float | None) -> None:
        with self._news:
            self._news.wait_for(lambda: self._is_superseded(request), seconds)

    def _is_superseded(self, request: ReconcileRequest) -> bool:
        return self._stopped or request is not self._request


def _minimal_inventory(stack: Manifest) -> Inventory:
    """Return what it takes to remove a stack whose spec is invalid by now."""
    spec = stack.get("spec")
    cluster = spec.get("cluster") if isinstance(spec, dict) else None
    home = {"cluster": cluster} if isinstance(cluster, dict) else {}
    found = inventory_of({**stack, "spec": home})[0] or inventory_of({**stack, "spec": {}})[0]
    if found is None:
        raise AssertionError  # an empty declaration is valid
    return found


class Controller:
    """One of any number of controllers; one of them leads."""

    def __init__(
        self, cluster: KubeClient, *, aim: Aim, take: EventSink, namespace: str = CONTROLLER_NAMESPACE
    ) -> None:
        """Prepare; nothing is asked. ``take`` is called from several threads."""
        self._cluster, self._aim, self._take = cluster, aim, take
        self._lease = ObjectRef("coordination.k8s.io/v1", "Lease", namespace, CONTROLLER_NAME)
        self._workers: dict[str, StackWorker] = {}
        self._overlaps = OverlapChecker()
        self._stopping = threading.Event()
        self._mirror: InformerCache | None = None
        self._is_leader = False
        self._active_at = time.monotonic()

    def look(self) -> ControllerMetrics:
        """Return the figures of this moment; from any thread."""
        figures = {worker.name: worker.figures for worker in list(self._workers.values())}
        return ControllerMetrics(self._is_leader, self._cluster.requests, self._cluster.retries, figures)

    def why_dead(self) -> str:
        """Say why this process is of no use any more; empty if it is."""
        if dead := [worker.name for worker in list(self._workers.values()) if not worker.thread.is_alive()]:
            return f"the worker of {', '.join(dead)} has ended"
        silent = time.monotonic() - self._active_at
        return f"the controller has been silent for {silent:.0f} s" if silent > _DEAD_SECONDS else ""

    def why_unready(self) -> str:
        """Return why this controller cannot lead or take over now, or may see old objects; empty if it can."""
        if silent := self._cluster.health.silent_seconds:
            return f"the API server has not answered for {silent:.0f} s"
        own = mirror.problem if (mirror := self._mirror) else ""
        return next(filter(None, [own, *(worker.watch_problem for worker in list(self._workers.values()))]), "")

    def stop(self) -> None:
        """End after the current steps, with lease and locks given back; from any thread."""
        self._stopping.set()
        self._cluster.cancel_retries()
        if mirror := self._mirror:
            mirror.wake()

    def run(self) -> None:
        """Wait for the leadership, lead, and begin again if it is lost, until `stop` is called."""
        while not self._stopping.is_set():
            self._active_at = time.monotonic()
            try:
                elector = LeaderElector(self._cluster, self._lease, {LEADER_VERSION: version("gpu-provision")})
                if self._is_elected(elector):
                    self._lead(elector)
            except ProvisionError as error:
                self._take(StackEvent(reason="Waiting", message=str(error), is_warning=True))
                self._stopping.wait(_RENEW_SECONDS)  # the API server does not answer, or refuses us: ask again

    def _is_elected(self, elector: LeaderElector) -> bool:
        """Wait until this controller leads; return False if it is stopped before."""
        scope = scope_of_object(self._lease)
        with self._following(scope) as mirror:
            while not self._stopping.is_set():
                self._active_at = time.monotonic()
                left = elector.acquire(next(iter(mirror.of(scope).values()), None))
                if not left:
                    return True
                mirror.wait(left)
        return False

    @contextlib.contextmanager
    def _following(self, *scopes: Scope) -> Iterator[InformerCache]:
        with InformerCache(self._cluster, scopes, keep=trim) as mirror:
            self._mirror = mirror
            try:
                yield mirror
            finally:
                self._mirror = None

    def _lead(self, elector: LeaderElector) -> None:
        self._take(StackEvent(reason="Leading", message=f"{elector.identity} leads"))
        self._is_leader = True
        try:
            with self._following(_STACKS) as mirror:
                while not self._stopping.is_set():
                    self._active_at = time.monotonic()
                    if elector.lost:
                        message = f"{elector.identity} leads no more: {elector.name} was not renewed in time"
                        self._take(StackEvent(reason="Following", message=message, is_warning=True))
                        return
                    if dead := self.why_dead():
                        raise RuntimeError(dead)  # a bug: the process ends, and is started again
                    self._assign(mirror, elector)
                    spent = time.monotonic() - self._active_at
                    mirror.wait(_RENEW_SECONDS)
                    self._stopping.wait(min(spent, _RENEW_SECONDS))  # many events, one look
        finally:
            self._is_leader = False
            self._dismiss(list(self._workers))
            elector.release()

    def _assign(self, mirror: InformerCache, elector: LeaderElector) -> None:
        """Have a worker for every stack, with the present stack as its request."""
        stacks = {str(stack["metadata"]["uid"]): stack for stack in mirror.of(_STACKS).values()}
        self._dismiss([uid for uid in self._workers if uid not in stacks])
        overlaps: Mapping[str, StackProblem] = {}
        if len(stacks) > 1:
            mirror.follow(_NODES)
            overlaps = self._overlaps.look(stacks.values(), mirror.of(_NODES).values())
        for uid, stack in stacks.items():
            request = ReconcileRequest(stack, overlaps.get(stack["metadata"]["name"]))
            if uid in self._workers:
                self._workers[uid].take(request)
            else:
                worker = StackWorker(self._cluster, request, aim=self._aim, take=self._take, leadership=elector)
                self._workers[uid] = worker
                worker.thread.start()

    def _dismiss(self, uids: Iterable[str]) -> None:
        """End workers; what they write meanwhile needs the leadership."""
        until = time.monotonic() + _STEP_SECONDS
        going = [self._workers.pop(uid) for uid in uids]
        for worker in going:
            worker.stop()
        for worker in going:
            worker.thread.join(max(0.0, until - time.monotonic()))
