"""Carries an adoption out in two halves, each under the stack's lock; between them comes an ordinary apply.

Every step finds out by itself what is left to do, so a run resumes after a killed one. The ClusterPolicy goes last:
while it exists, the adoption is not complete.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from gpu_provision.adopt.discovery import (
    REVISION,
    OperatorInstall,
    discover,
    is_of_driver,
    is_operator,
    is_owned,
    labels_of,
    uids_of,
)
from gpu_provision.adopt.plan import Adoption, Disposition, ObjectPlan, RunningDriver, plan_adoption
from gpu_provision.components import labels
from gpu_provision.components.nfd import NODE_FEATURE, NODE_OF_FEATURE
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError, NotFoundError
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.lock import WriteLock
from gpu_provision.kube.observe import POD
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, Permission, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, RunFailedError, Severity
from gpu_provision.model.progress import Event, State
from gpu_provision.model.text import join_limited
from gpu_provision.planning.applyset import component_of
from gpu_provision.planning.managed_fields import is_transferred, remove_owners, transfer_managed_fields
from gpu_provision.rbac import review
from gpu_provision.rbac.permissions import object_permissions
from gpu_provision.reconcile.session import Session

Listen = Callable[[Event], None]
Say = Callable[[str], None]
_Item = TypeVar("_Item")

WAIT_SECONDS = 300.0
_POLL_SECONDS = 0.25
_PARALLEL = 12
_TRIES = 8  # of a write to an object that a controller writes to as well
_REPLICAS = "gpu-provision.io/adopted-replicas"  # replicas of the operator's Deployment before the adoption
_WORKLOADS = ("Deployment", "DaemonSet")
_MAX_NODES = 3


def plan(session: Session) -> Adoption:
    """Plan an adoption. Raises UnreachableError, ForbiddenError."""
    reading = session.cluster_plan()
    install = discover(session.cluster, session.inventory)
    return plan_adoption(install, reading.context, reading.desired)


def transfer_ownership(session: Session, listen: Listen) -> None:
    """Stop the operator and take its objects over, without new operands and without a driver restart.

    Raises RunFailedError or ForbiddenError before any write if `check` fails; RunFailedError for a step that does not
    complete; LockedError.
    """
    check(session, plan(session))
    with _hold_lock(session, listen) as runner:
        runner.transfer_ownership(plan(session))


def finalize(session: Session, listen: Listen) -> None:
    """Delete the replaced objects, and last the ClusterPolicy. Raises RunFailedError, LockedError."""
    with _hold_lock(session, listen) as runner:
        runner.finalize(plan(session), lambda: discover(session.cluster, session.inventory))


def check(session: Session, adoption: Adoption) -> None:
    """Raise RunFailedError for the errors of an adoption, ForbiddenError for missing permissions."""
    transferred_refs = {str(item.ref) for item in adoption.objects_with(Disposition.TAKEN, Disposition.REPLACED)}
    conflicts = (item for item in session.refusals() if item.code != "GP304" or item.where not in transferred_refs)
    if errors := [item for item in (*adoption.findings, *conflicts) if item.severity is Severity.ERROR]:
        raise RunFailedError(*errors)
    wanted = required_permissions(adoption)
    missing = review.missing_finding(session.cluster, session.inventory, wanted, "--adopt")
    if missing := missing or session.missing_permissions():
        raise ForbiddenError(missing)


def required_permissions(adoption: Adoption) -> Iterator[Permission]:
    """Yield the permissions of an adoption besides those of the apply."""
    for item in adoption.objects:
        yield from object_permissions(
            item.ref, "patch" if item.disposition in {Disposition.TAKEN, Disposition.LEFT} else "delete"
        )
    for operator in adoption.operators:
        yield from object_permissions(ref_of(operator), "patch", "delete")
    for ref in (*(node.ref for node in adoption.nodes), *(driver.ref for driver in adoption.drivers)):
        yield from object_permissions(ref, "patch")
    for policy in adoption.policies:
        yield from object_permissions(ref_of(policy), "delete")
    if adoption.replaces_discovery:
        yield from object_permissions(ObjectRef(*NODE_FEATURE, adoption.discovery, ""), "list", "watch")


@contextlib.contextmanager
def _hold_lock(session: Session, listen: Listen) -> Iterator[AdoptionRunner]:
    def report_wait(message: str) -> None:
        listen(Event(component="", node="", state=State.PROGRESSING, message=message))

    with WriteLock(session.cluster, session.inventory, on_wait=report_wait):
        yield AdoptionRunner(session.cluster, report_wait)


@dataclass(frozen=True, slots=True)
class AdoptionRunner:
    """Executes one adoption."""

    cluster: KubeClient
    say: Say = lambda _: None

    def transfer_ownership(self, adoption: Adoption) -> None:
        """Take over all objects that stay, without a driver restart, and delete the replaced and removed operands."""
        self._stop(adoption.operators)
        uids = uids_of(adoption.policies)
        moving = adoption.objects_with(Disposition.TAKEN, Disposition.LEFT)
        self.say(f"taking {len(moving)} objects over")
        self._run_parallel(partial(self._rewrite, uids=uids), moving)
        # The DaemonSet controller deletes pods on nodes that its selector lacks: labels come first.
        self._run_parallel(lambda node: self.cluster.patch_labels(node.ref, node.uid, node.changes), adoption.nodes)
        doomed = [
            item
            for item in adoption.objects_with(Disposition.REPLACED, Disposition.REMOVED)
            if is_owned(item.live, uids)
        ]
        for item in doomed:
            if item.ref.kind == "DaemonSet" and is_of_driver(item.live):
                self.say(f"deleting {item.ref}, orphaning its pods")
                self.cluster.delete(item.ref, uid=item.live["metadata"]["uid"], orphan=True)
            else:
                self._delete(item.live)
        for item in doomed:
            self._await_end(item.ref, item.live["metadata"]["uid"])
        # Not before: a pod without the label `app` that its DaemonSet selects, as on OpenShift, would get a successor.
        self._run_parallel(self._label_driver, adoption.drivers)
        for pod in adoption.leftovers:
            self._delete(pod)
        self.say("the objects are taken over; applying the inventory")

    def finalize(self, adoption: Adoption, look: Callable[[], OperatorInstall]) -> None:
        """Delete the rest of a plan after the apply, and last the ClusterPolicy; ``look`` discovers once more."""
        self._stop(adoption.operators)
        self._await_discovery(adoption)
        # Revisions first: an interrupted run finds their namespace by the objects deleted below. They are orphaned like
        # the pods of the old driver DaemonSet.
        for namespace in sorted({item.ref.namespace for item in adoption.objects if item.ref.namespace}):
            for revision in self.cluster.list(REVISION, namespace=namespace).items:
                if is_of_driver(revision) and not revision["metadata"].get("ownerReferences"):
                    self._delete(revision)
        removed = [item.live for item in adoption.objects_with(Disposition.REMOVED)]
        # Workloads, then the objects they use; last the operator, which names the release for a resumed run.
        removable = [item for item in removed if not is_operator(item)]
        self._run_parallel(self._delete, [item for item in removable if item["kind"] in _WORKLOADS])
        self._run_parallel(self._delete, [item for item in removable if item["kind"] not in _WORKLOADS])
        self._run_parallel(self._delete, filter(is_operator, removed))
        install = look()
        if install.owned:
            finding = _stuck_finding(
                "the ClusterPolicy stays: deleting it would also delete the objects that it still owns",
                install.cluster,
                evidence=", ".join(str(ref) for ref in sorted(install.owned)),
                fix="check whether the operator was started again; then run gpu-provision adopt again, which resumes",
            )
            raise RunFailedError(finding)
        for policy in adoption.policies:
            self.say(f"deleting {ref_of(policy)}, orphaning its dependents")
            self.cluster.delete(ref_of(policy), uid=policy["metadata"]["uid"], orphan=True)
            self._await_end(ref_of(policy), policy["metadata"]["uid"])

    def _run_parallel(self, do: Callable[[_Item], object], items: Iterable[_Item]) -> None:
        with RequestPool(self.cluster, _PARALLEL) as pool:
            list(pool.map(do, items))

    def _stop(self, operators: Iterable[Manifest]) -> None:
        for item in operators:
            replicas = item["spec"].get("replicas", 1)
            if replicas:
                self.say(f"scaling {ref_of(item)} to 0")
                metadata = {"uid": item["metadata"]["uid"], "annotations": {_REPLICAS: str(replicas)}}
                self.cluster.merge_patch(ref_of(item), {"metadata": metadata, "spec": {"replicas": 0}})
            self._wait_until(
                partial(self._has_stopped, item),
                f"{ref_of(item)} still has pods, although it is scaled to 0",
                "see why they remain: kubectl get pods; then run gpu-provision adopt again, which resumes",
            )

    def _has_stopped(self, deployment: Manifest) -> bool:
        selector = ",".join(f"{key}={value}" for key, value in deployment["spec"]["selector"]["matchLabels"].items())
        namespace = deployment["metadata"]["namespace"]
        return not self.cluster.list(POD, namespace=namespace, label_selector=selector).items

    def _rewrite(self, item: ObjectPlan, uids: frozenset[str]) -> None:
        """Transfer or release exactly the planned object; read it again after a conflict."""
        live: Manifest | None = item.live
        for _ in range(_TRIES):
            if live is None or live["metadata"]["uid"] != item.live["metadata"]["uid"]:
                return
            metadata: dict[str, object] = {}
            is_moving = item.disposition is Disposition.TAKEN and not is_transferred(live)
            if is_moving or is_owned(live, uids):
                metadata["ownerReferences"] = remove_owners(live, uids)
            if is_moving:
                metadata["managedFields"] = transfer_managed_fields(live)
            if not metadata:
                return
            version = {"resourceVersion": live["metadata"]["resourceVersion"]}
            try:
                self.cluster.merge_patch(item.ref, {"metadata": {**metadata, **version}})
            except ConflictError:
                live = self.cluster.get(item.ref)
            else:
                return
        raise RunFailedError(_stuck_finding(f"another client keeps writing to {item.ref}", str(item.ref)))

    def _label_driver(self, driver: RunningDriver) -> None:
        """Set the labels by which the new DaemonSet adopts a running driver pod, and its annotations."""
        metadata = {"uid": driver.uid, "labels": dict(driver.labels), "annotations": dict(driver.annotations)}
        with contextlib.suppress(NotFoundError, ConflictError):  # gone; the new DaemonSet creates the next one
            self.cluster.merge_patch(driver.ref, {"metadata": metadata})

    def _delete(self, item: Manifest) -> None:
        with contextlib.suppress(ConflictError):  # another object of this name is not the planned one
            self.cluster.delete(ref_of(item), uid=item["metadata"]["uid"])

    def _await_end(self, ref: ObjectRef, uid: str) -> None:
        def is_gone() -> bool:
            live = self.cluster.get(ref)
            return live is None or live["metadata"]["uid"] != uid

        fix = f"see its metadata.finalizers: kubectl get {ref.kind} {ref.name} -o yaml"
        self._wait_until(is_gone, f"{ref} is not deleted", fix)

    def _await_discovery(self, adoption: Adoption) -> None:
        """Wait until the inventory's NFD has published every node; others would lose their labels and operands."""
        if not adoption.replaces_discovery:
            return
        features = Scope(NODE_FEATURE, namespace=adoption.discovery)
        workers = Scope(POD, f"{labels.STACK}={adoption.inventory}")
        began, deadline, last_message = datetime.now(UTC), time.monotonic() + WAIT_SECONDS, ""
        until = f"since {began:%H:%M:%S}, until {began + timedelta(seconds=WAIT_SECONDS):%H:%M:%S} UTC"
        with InformerCache(self.cluster, [features, workers], keep=trim) as cache:
            while missing := nodes_without_features(adoption.targets, cache.list(features), cache.list(workers)):
                left, named = deadline - time.monotonic(), [f"{node} ({why})" for node, why in missing.items()]
                if left < 0:
                    finding = _stuck_finding(
                        f"Node Feature Discovery has not seen every node after {WAIT_SECONDS:.0f} s; "
                        "that of the chart stays",
                        f"Node {', '.join(missing)}",
                        evidence=join_limited(named, _MAX_NODES),
                        fix="see why the worker does not publish: kubectl logs -n NAMESPACE WORKER; "
                        "then run gpu-provision adopt again, which resumes",
                    )
                    raise RunFailedError(finding)
                message = f"waiting for Node Feature Discovery to see {join_limited(named, _MAX_NODES)}; {until}"
                if message != last_message:
                    self.say(message)
                last_message = message
                cache.wait(left)

    def _wait_until(self, condition: Callable[[], bool], what: str, fix: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise RunFailedError(_stuck_finding(what, self.cluster.name, fix=fix))
            time.sleep(_POLL_SECONDS)


def nodes_without_features(
    nodes: Iterable[str], features: Mapping[ObjectRef, Manifest], pods: Mapping[ObjectRef, Manifest]
) -> dict[str, str]:
    """Return the nodes that the inventory's Node Feature Discovery has not published yet, each with the reason.

    Their labels would go with the chart's Node Feature Discovery. ``features`` are the NodeFeatures in the inventory's
    NFD namespace, ``pods`` those of the stack.
    """
    published = {labels_of(item).get(NODE_OF_FEATURE) for item in features.values()}
    workers = {
        pod_view.node_of(pod): pod
        for pod in pods.values()
        if component_of(pod) == "nfd" and not pod_view.is_of_deployment(pod)
    }
    missing = {}
    for node in sorted(set(nodes) - published):
        worker = workers.get(node)
        where = f"worker {worker['metadata']['namespace']}/{worker['metadata']['name']}" if worker else ""
        if worker is None:
            missing[node] = "no worker pod"
        elif pod_view.is_ready(worker):
            missing[node] = f"{where} has published nothing"
        else:
            missing[node] = f"{where}: {pod_view.cause(worker)}"
    return missing


def _stuck_finding(what: str, where: str, *, evidence: str = "", fix: str = "run adopt again to resume") -> Finding:
    return Finding(code=codes.NOT_DONE, what=what, where=where, evidence=evidence, fix=fix)
