"""Verdicts of vectorAdds, their expiry, and the label and the startup taint of a validated node.

The container's termination message has the boot ID and the driver version; its status has the start time. A verdict
holds for the same content, in the same boot, until a container that it depends on starts again: those of driver,
toolkit and, for the second validation, device plugin. All times are of the kubelet's clock, in whole seconds, so that
of two starts in the same second neither proves the other.

The label of a validated node is removed when its verdicts expire, such as by a reboot or a replaced pod. A node that
waits for another driver keeps its label until the driver is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from gpu_provision.components import (
    device_plugin_validation,
    driver_validation,
    gpu_resources,
    labels,
    sharing,
    startup_taint,
    validator,
)
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import (
    DriverBasis,
    Manifest,
    NodeFacts,
    NodeObjects,
    ObservedState,
    RenderContext,
    Target,
)
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.applyset import digest_of, matches_node
from gpu_provision.planning.upgrades import DRIVER, DRIVER_KEPT, has_installed, is_kept

VALIDATIONS: Mapping[str, tuple[str, ...]] = {
    driver_validation.NAME: ("driver", "toolkit"),
    device_plugin_validation.NAME: ("driver", "toolkit", "device_plugin"),
}
"""Validation -> the components whose pods on the node it depends on."""

RUNS_IN: Mapping[str, str] = {
    driver_validation.NAME: validator.NAME,
    device_plugin_validation.NAME: device_plugin_validation.NAME,
}
"""Validation -> the component whose pods run its vectorAdd."""

NOT_RUN = "has not run"
"""Beginning of the reason of a validation that has not started."""

NOT_VALIDATED = f"not validated: the driver {DRIVER_KEPT}"
"""Reason of a validation of content that its node does not have."""

NEVER_RUN = f"{NOT_RUN} for this content"
FAILED_WITH = "the validation failed: "
REPEAT_REQUESTED = f"{NOT_RUN} again, as was asked for"
_BOOT = re.compile(r"^boot (\S+)$", re.MULTILINE)
_DRIVER = re.compile(r"^driver (\S+)$", re.MULTILINE)
_KILLED_EXIT_CODES = frozenset({137, 143, 255})  # SIGKILL, SIGTERM, a reboot
_OUT_OF_MEMORY = "OOMKilled"
_NOT_STARTED = "StartError"  # startedAt of such a container is in 1970
Desired = Mapping[str, Sequence[Manifest]]
Parts = Mapping[str, NodeObjects]
Pods = Mapping[tuple[str, str], Sequence[Manifest]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One vectorAdd that has ended."""

    content: str  # digest of the pod that ran it, or of the template of that pod
    boot: str  # ID of the node's boot
    began: str  # when its container started, as RFC 3339 in UTC, which sorts as text
    driver: str = ""  # version of the kernel module; empty if unknown
    passed: bool = True
    lines: tuple[str, ...] = ()  # its output

    def __str__(self) -> str:
        """Return the verdict as a record has it: up to 70 bytes."""
        return f"{self.content}.{self.boot}.{self.began}"

    @property
    def failure(self) -> str:
        """Why it failed: the last line of its output."""
        return FAILED_WITH + next((line for line in reversed(self.lines) if line.strip()), "no output")


def parse_verdict(text: str) -> Verdict | None:
    """Parse a verdict of a record; None for an empty text, or one of another version."""
    match text.split("."):
        case [content, boot, began]:
            return Verdict(content, boot, began)
    return None


def verdict_of(pod: Manifest) -> Verdict | None:
    """Return the last verdict of a pod's vectorAdd; None if it has not ended, or was killed from outside.

    A failure counts until another try has ended: the kubelet repeats the init container of the validator's pod.
    """
    found = pod.get("status") or {}
    inits = (each for each in found.get("initContainerStatuses") or () if each["name"] == validator.VECTOR_ADD)
    status: Manifest | None = next(chain(inits, found.get("containerStatuses") or ()), None)
    if status is None or pod_view.was_rejected(pod):
        return None
    now, before = status.get("state") or {}, status.get("lastState") or {}
    failed = before.get("terminated") if (before.get("terminated") or {}).get("exitCode") else None
    ended: dict[str, Any] | None = now.get("terminated") or failed
    if ended is None or (ended["exitCode"] in _KILLED_EXIT_CODES and ended.get("reason") != _OUT_OF_MEMORY):
        return None
    message = ended.get("message", "")
    boot, driver = _BOOT.search(message), _DRIVER.search(message)
    headings = {found[0] for found in (boot, driver) if found}
    printed = tuple(line for line in message.splitlines() if line not in headings)
    return Verdict(
        content=digest_of(pod),
        boot=boot[1] if boot else "",
        began=ended.get("finishedAt" if ended.get("reason") == _NOT_STARTED else "startedAt") or "",
        driver=driver[1] if driver else "",
        passed=ended["exitCode"] == 0,
        lines=printed or tuple(filter(None, [pod_view.cause(pod) if ended["exitCode"] else ""])),
    )


def last_verdict(component: str, node: str, observed: ObservedState, pods: Pods) -> Verdict | None:
    """Return the last verdict on a node, of any content, from a pod or the record.

    Terminating pods do not count, as no pod replaces them before they have ended.
    """
    staying = (pod for pod in pods.get((RUNS_IN[component], node), ()) if not pod["metadata"].get("deletionTimestamp"))
    counts = (pod for pod in staying if pod["metadata"]["uid"] not in observed.void_pod_uids)
    known = (parse_verdict(observed.verdicts.get((component, node), "")), *map(verdict_of, counts))
    return max(filter(None, known), key=lambda each: each.began, default=None)


def expiry_reason(  # noqa: PLR0913 - everything that a verdict depends on
    component: str, target: Target, content: str, verdict: Verdict | None, pods: Pods, *, below: Collection[str]
) -> str:
    """Return why a verdict does not hold on a node; empty if it holds.

    ``content``: the desired digest, empty for that of the verdict. ``below``: the components with a pod on this node
    that the validation depends on.
    """
    if verdict is None or (content and verdict.content != content):
        return NEVER_RUN
    boot = target.facts.boot_id if target.facts else ""
    if boot and boot != verdict.boot and (verdict.boot or verdict.passed):
        return f"{NOT_RUN} since the node booted"
    for name in (name for name in VALIDATIONS[component] if name in below):
        those = pods.get((name, target.name), ())
        starts = list(_container_starts(those))
        if not starts or max(starts) >= verdict.began:
            return f"{NOT_RUN} since the {name.replace('_', ' ')} pod was replaced or restarted"
        # A driver that is still built fails every vectorAdd; that of a pod which had found the one before, too.
        if name == DRIVER and not verdict.passed and max(_ready_times(those), default="~") > verdict.began:
            return f"{NOT_RUN} since the driver pod got ready"
    of_host = target.driver.version if target.driver.on_host and target.driver.basis is DriverBasis.READ else ""
    if of_host and verdict.driver and of_host != verdict.driver:
        return f"{NOT_RUN} since the host driver changed from {verdict.driver} to {of_host}"
    return ""


def _container_starts(pods: Iterable[Manifest]) -> Iterator[str]:
    """Yield the start time of the main container, the first one, of each pod that is not terminating."""
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        main = pod["spec"]["containers"][0]["name"]
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            if status["name"] == main and "running" in (status.get("state") or {}):
                yield status["state"]["running"].get("startedAt") or ""


def _ready_times(pods: Iterable[Manifest]) -> Iterator[str]:
    """Yield since when each ready pod is ready."""
    for pod in filter(pod_view.is_ready, pods):
        conditions = pod["status"]["conditions"]
        yield next(each.get("lastTransitionTime") or "" for each in conditions if each["type"] == "Ready")


def count_problem(target: Target, context: RenderContext, wanted: Mapping[str, str | None]) -> str:
    """Return which GPU counts of a node differ; empty if all agree. ``wanted``: its labels after the run."""
    if target.facts is None or target.pool.gpu is None:
        return ""
    node, plugin = target.facts, context.inventory.specs.device_plugin
    read = context.facts.config_maps.get(plugin.config_map)
    replicas = sharing.expected_replicas(plugin, wanted.get(labels.PLUGIN_CONFIG) or "", read)
    problem = gpu_resources.count_problem(target.pool.gpu, node.labels, node.devices, replicas=replicas)
    return problem or gpu_resources.geometry_problem(target, context.inventory, replicas)


def gpu_text(target: Target) -> str:
    """Return the GPUs that the inventory declares for a node, in words."""
    return str(target.pool.gpu) if target.pool.gpu else "none"


def postpone_validation(state: NodeState, driver: NodeState | None) -> NodeState:
    """Return the state of a validation, postponed if its node keeps the previous driver."""
    is_needless = state.reason.startswith(NOT_RUN) and is_kept(driver)
    return replace(state, state=State.READY, reason=NOT_VALIDATED) if is_needless else state


def postpone_validations(found: Mapping[tuple[str, str], NodeState]) -> dict[tuple[str, str], NodeState]:
    """Return the states, with the validations of nodes that keep the previous driver postponed."""
    drivers = [(node, state) for (component, node), state in found.items() if component == DRIVER and is_kept(state)]
    keys = (((name, node), driver) for node, driver in drivers for name in (*RUNS_IN, STARTUP_TAINT))
    return {**found, **{key: postpone_validation(found[key], driver) for key, driver in keys if key in found}}


STARTUP_TAINT = startup_taint.NAME

LABEL_PENDING = "its label is not written yet"
"""Reason of a validated node that does not have the label yet."""


class NodePatch(NamedTuple):
    """Labels to change, None to remove one; ``removes_taint``: whether the write removes the startup taint as well."""

    labels: dict[str, str | None]
    removes_taint: bool

    @property
    def is_empty(self) -> bool:
        """Whether the patch changes nothing."""
        return not (self.labels or self.removes_taint)


def node_patch(manifest: Manifest, node: NodeFacts, inventory: Inventory) -> NodePatch:
    """Return the patch that makes a node as a partial Node of an inventory's components.

    The startup taint is removed with the label of the validation, or if the inventory turns the taint off or no longer
    has the node, as no other program would remove it.
    """
    wanted: Mapping[str, str | None] = manifest["metadata"].get("labels", {})
    mark = wanted.get(labels.INVENTORY, "")
    is_off = mark is None or (bool(mark) and not inventory.specs.startup_taint.enabled)
    removes_taint = bool(wanted.get(labels.VALIDATED)) or is_off
    return NodePatch(label_changes(manifest, node), removes_taint and has_startup_taint(node))


def label_changes(manifest: Manifest, node: NodeFacts) -> dict[str, str | None]:
    """Return the labels of a node that differ from a partial Node; None removes a label."""
    wanted: Mapping[str, str | None] = manifest["metadata"].get("labels", {})
    return {key: value for key, value in wanted.items() if node.labels.get(key) != value}


def has_startup_taint(node: NodeFacts) -> bool:
    """Whether a node has the startup taint, whatever its effect."""
    return len(other_taints(node)) < len(node.taints)


def other_taints(node: NodeFacts) -> tuple[Mapping[str, Any], ...]:
    """Return the taints of a node without the startup taint."""
    return tuple(taint for taint in node.taints if taint.get("key") != labels.NOT_VALIDATED)


def node_state(target: Target, known: Mapping[str, NodeState], *, is_reported: bool) -> NodeState:
    """Return the state of a node's validation label; ``known``: the states of its other components."""
    if is_kept(known.get(DRIVER)):
        state, reason = State.READY, NOT_VALIDATED
    elif reason := _pending_reason(known):
        state = State.PENDING
    else:
        state, reason = (State.READY, "") if is_reported else (State.PROGRESSING, LABEL_PENDING)
    return NodeState(component=STARTUP_TAINT, node=target.name, state=state, reason=reason)


def _pending_reason(known: Mapping[str, NodeState]) -> str:
    proofs = [known[name] for name in VALIDATIONS if name in known]
    # A driver with another configuration and the same installation needs no new validation.
    missing = not proofs or (DRIVER in known and known[DRIVER].state is not State.READY)
    waits = (proof.reason or NEVER_RUN for proof in proofs if proof.state is not State.READY)
    return next(waits, NEVER_RUN if missing else "")


def expired_labels(
    context: RenderContext, desired: Desired, parts: Parts, observed: ObservedState, pods: Pods
) -> dict[str, dict[str, str | None]]:
    """Return the removal of the validation label, for each node whose verdicts have expired."""
    if STARTUP_TAINT not in desired:
        return {}
    labelled = (each for each in context.targets if each.facts and labels.VALIDATED in each.facts.labels)
    expired = (each for each in labelled if not _is_label_valid(each, parts, observed, pods))
    return {each.name: {labels.VALIDATED: None} for each in expired}


def _is_label_valid(target: Target, parts: Parts, observed: ObservedState, pods: Pods) -> bool:
    if STARTUP_TAINT not in parts or target.name not in parts[STARTUP_TAINT].single:
        return False  # no validations run there
    verdicts = {
        name: last_verdict(name, target.name, observed, pods)
        for name, runs_in in RUNS_IN.items()
        if _serves_node(parts.get(runs_in), target)
    }
    known = {name: verdict for name, verdict in verdicts.items() if verdict}
    if not known or not all(verdict.passed for verdict in known.values()):
        return False
    below = [name for name, part in parts.items() if _serves_node(part, target)]
    if len(known) == len(verdicts) and _are_verdicts_valid(known, target, pods, below):
        return True
    # A replaced pod of the validator has no verdict yet.
    is_driver_valid = _are_verdicts_valid(known, target, pods, {DRIVER}.intersection(below))
    return is_driver_valid and _waits_for_driver(target, parts, pods)


def _are_verdicts_valid(shown: Mapping[str, Verdict], target: Target, pods: Pods, below: Collection[str]) -> bool:
    return not any(expiry_reason(name, target, "", verdict, pods, below=below) for name, verdict in shown.items())


def _serves_node(part: NodeObjects | None, target: Target) -> bool:
    live = target.labels
    return part is not None and (
        target.name in part.single or any(matches_node(each, live) for each in part.daemonsets)
    )


def _waits_for_driver(target: Target, parts: Parts, pods: Pods) -> bool:
    """Whether the driver is still to be replaced; its validation waits for the new one."""
    daemonsets = parts[DRIVER].daemonsets if DRIVER in parts else ()
    groups = ((each, each["spec"]["template"]["spec"]["nodeSelector"].get(labels.DRIVER_GROUP)) for each in daemonsets)
    wanted = next((each for each, group in groups if group == target.driver_group), None)
    drivers = (pod for pod in pods.get((DRIVER, target.name), ()) if not pod["metadata"].get("deletionTimestamp"))
    return wanted is not None and any(not has_installed(pod, wanted) for pod in drivers)
