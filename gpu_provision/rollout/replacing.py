"""Restarting the driver of an empty node, having it prove itself, and giving the node back."""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.rollout import needs, pods, states
from gpu_provision.rollout.actions import Cordon, Restart, move
from gpu_provision.rollout.snapshot import Domain, DriverPod, Node
from gpu_provision.rollout.states import UpgradeState
from gpu_provision.rollout.turn import Turn, deadline, do, fail, to, validation

NOT_READY = "the driver is not ready"
"""Beginning of what a node waits for, or failed of, whose new driver pod does not get ready."""

_MOST_RESTARTS = 10  # the reference's limit


def restart(node: Node, domain: Domain, now: float) -> Turn:
    """Delete the driver pod once, and wait until its successor is ready."""
    until, driver = deadline(node, domain.restart_seconds), node.driver
    if driver is None or driver.is_terminating:
        waits = "the previous driver pod is terminating" if driver else "has no driver pod"
        return _overdue(node, waits, until, now)
    if needs.must_restart(node):
        return _delete_driver(node, driver.uid, until, now)
    if node.annotations.get(states.SAFE_LOAD):
        return do(move(node, node.state, node.since() or now, reason="is empty", also={states.SAFE_LOAD: None}))
    return _bring_up(node, driver, until, now)


def _bring_up(node: Node, driver: DriverPod, until: float, now: float) -> Turn:
    if driver.is_ready:
        return to(node, UpgradeState.VALIDATION_REQUIRED, now)
    if driver.restarts > _MOST_RESTARTS:
        return fail(node, now, f"{NOT_READY}: restarted {driver.restarts} times{_suspected(node)}")
    return _overdue(node, f"{NOT_READY}{_suspected(node)}", until, now)


def _delete_driver(node: Node, uid: str, until: float, now: float) -> Turn:
    """Delete the driver pod, unless GPU work has come to the node meanwhile; the clock then goes on."""
    if pods.holders(node):
        since = node.since() or now
        return do(move(node, UpgradeState.POD_DELETION_REQUIRED, since, reason="GPU pods have come to the node"))
    if not node.is_template_observed:
        return _overdue(node, "the DaemonSet controller has not observed the new template", until, now)
    if now >= until:
        return fail(node, now, "the previous driver pod is still there")
    return Turn((Restart(node=node.name, uid=uid),), "the driver pod to go", until)


def _overdue(node: Node, waits: str, until: float, now: float) -> Turn:
    if now < until:
        return Turn(waits=waits, until=until)
    return fail(node, now, f"{waits}, {now - (node.since() or now):.0f} s after {node.state.value}")


def _suspected(node: Node) -> str:
    found = (*pods.holders(node), *pods.suspects(node))
    return f"; these may use it: {pods.named(found, lambda pod: f'{pod} {pod.use}')}" if found else ""


def validate(node: Node, domain: Domain, now: float) -> Turn:
    """Have the driver prove itself; there is no way from here to the uncordon but through a proof."""
    until = deadline(node, domain.validation_seconds)
    if needs.must_restart(node) and node.driver is not None:
        return to(node, UpgradeState.POD_DELETION_REQUIRED, now, needs.why(node))
    if node.driver is None or node.driver.is_terminating or not node.driver.is_ready:
        return _overdue(node, "the driver is no longer ready", until, now)
    if trouble := needs.disproof(node):
        return fail(node, now, trouble)
    if needs.is_proven(node):
        ready = to(node, UpgradeState.UNCORDON_REQUIRED, now)
        return ready if node.offers_gpus else _overdue(node, "the device plugin does not offer the GPUs", until, now)
    waiting = _overdue(node, "the validation has not ended", until, now)
    return waiting if waiting.actions else Turn(validation(node), waiting.waits, until)


def uncordon(node: Node, now: float) -> Turn:
    """Give the node back, with a driver that is proven or has never been touched."""
    untouched = needs.is_untouched(node) and not needs.why(node)
    if not (untouched or needs.is_proven(node)):
        return to(node, UpgradeState.VALIDATION_REQUIRED, now, "the driver has yet to prove itself")
    lift = Cordon.LIFT if needs.owns_cordon(node) else Cordon.KEEP
    return do(replace(move(node, UpgradeState.DONE, now), cordon=lift))
