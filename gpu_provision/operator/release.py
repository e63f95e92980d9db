"""Release a stack from the operator, and refuse commands that the controller would undo."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.informer import Mirror
from gpu_provision.kube.lease import holder_identity
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Locked, RunFailed
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change, DestroyResult
from gpu_provision.model.progress import LockHolder
from gpu_provision.operator.client import deletion_finding, get_stack, remove_finalizer
from gpu_provision.operator.conflicts import warn_on_destroy, warn_on_release
from gpu_provision.operator.leader_election import LeaderMonitor, lease_for
from gpu_provision.operator.queue import ReconcileRequest
from gpu_provision.operator.stack import KEEP, ON_DELETE, STACK, stack_label
from gpu_provision.reconcile.observer import scope_of_object

_LOOK_SECONDS = 2.0


def release(cluster: Cluster, name: str, *, seconds: float, say: Callable[[str], None] = lambda _: None) -> bool:
    """Delete a stack's resource, and leave what it has installed; say whether there was one.

    The controller ends its run before it lets go. Where none works the resource goes all the same.

    Raises:
        RunFailed: The stack is being removed; or the controller has not let go in time.
        Refused, Rejected, Unreachable: As the API server answers.
    """
    ref = ObjectRef(*STACK, "", name)
    live = cluster.get(ref)
    if live is None:
        return False
    if live["metadata"].get("deletionTimestamp") and not ReconcileRequest(live).is_released:
        raise RunFailed(deletion_finding(live))
    try:
        cluster.merge(ref, {"metadata": {"uid": live["metadata"]["uid"], "annotations": {ON_DELETE: KEEP}}})
    except NotFoundError:
        return True
    cluster.delete(ref, uid=live["metadata"]["uid"])
    _await_end(cluster, live, time.monotonic() + seconds, say)
    return True


def release_findings(cluster: Cluster, name: str) -> tuple[Finding, ...]:
    """Return what a reader should know before a stack is released. Raises Refused, Unreachable."""
    live = cluster.get(ObjectRef(*STACK, "", name))
    return warn_on_release(live) if live else ()


def _await_end(cluster: Cluster, stack: Manifest, until: float, say: Callable[[str], None]) -> None:
    scope, leader, is_told = scope_of_object(ref_of(stack)), LeaderMonitor(lease_for(stack)), False
    with Mirror(cluster, (scope, leader.scope)) as mirror:
        while any(each["metadata"]["uid"] == stack["metadata"]["uid"] for each in mirror.of(scope).values()):
            leader.observe(mirror)
            if leader.is_missing():
                remove_finalizer(cluster, ref_of(stack))
            elif time.monotonic() > until:
                raise RunFailed(_not_let_go(stack, leader))
            elif not is_told:
                is_told = True
                say(f"waiting for the controller to let go of {stack_label(stack)}")
            mirror.wait(_LOOK_SECONDS)


def _not_let_go(stack: Manifest, leader: LeaderMonitor) -> Finding:
    return Finding(
        code=codes.NOT_IN_TIME,
        where=stack_label(stack),
        what="the controller has not let go of the stack in time",
        evidence=f"{leader.holder} works" if leader.holder else "",
        consequence="the resource goes as soon as the controller's run has ended; the stack stays",
        fix=f"kubectl describe {stack_label(stack)} tells what it does; then run again",
    )


def preview_destroy(result: DestroyResult, stack: Manifest | None) -> DestroyResult:
    """Return what a removal would do, the end of the stack's resource before all else, and whether that lasts."""
    if stack is None:
        return result
    effect = "the controller lets go of the stack, and what it has installed is removed after that"
    change = Change(component="operator", action=Action.DELETE, ref=ref_of(stack), effects=(effect,))
    return with_warnings(replace(result, changes=(change, *result.changes)), stack)


def with_warnings(result: DestroyResult, stack: Manifest | None) -> DestroyResult:
    """Return how a removal ended, and whether the stack's resource may come back."""
    told = warn_on_destroy(stack) if stack else ()
    return replace(result, findings=(*result.findings, *told))


def adoption_findings(cluster: Cluster, inventory: Inventory) -> tuple[Finding, ...]:
    """Return why a cluster cannot be adopted: a controller would undo it half way."""
    stack = get_stack(cluster, inventory)
    return (_in_the_way(stack, f"gpu-provision operator release {inventory.name}, then adopt"),) if stack else ()


def _in_the_way(stack: Manifest, fix: str) -> Finding:
    return Finding(
        code=codes.LOOKED_AFTER,
        where=stack_label(stack),
        what="a controller looks after this stack, and would get in the way; nothing was written",
        fix=fix,
    )


def refuse_controllers_lock(cluster: Cluster, inventory: Inventory, lock: LockHolder) -> None:
    """Raise Locked if a lock is the controller's, which would take it again at once."""
    stack = get_stack(cluster, inventory)
    lease = cluster.get(lease_for(stack)) if stack else None  # without an operator there is no role that allows it
    if stack is not None and holder_identity(lease) == lock.holder:
        fix = f"change the resource, which ends its run; or gpu-provision operator release {inventory.name}"
        raise Locked(_in_the_way(stack, fix))
