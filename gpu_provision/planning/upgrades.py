"""States of a node's driver between two contents, from its pod and its Node object.

A node that moves to another driver DaemonSet keeps its current one until the rollout reaches the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpu_provision.components import labels, mig_manager
from gpu_provision.components.gpu_resources import has_geometry_by_plain_name
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import Manifest, NodeFacts, Target
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.applyset import digest_of
from gpu_provision.rollout import states as upgrade
from gpu_provision.rollout.states import EARLY, LATE, UpgradeState, installation_digest

DRIVER = "driver"
"""Name of the component whose pods a rollout replaces."""

OUTDATED = "the pod still runs the previous content"
"""Reason of a component whose pod is older than its DaemonSet."""

DRIVER_KEPT = "keeps the previous content"
"""Beginning of the reason of a working driver that this run does not replace."""

STACK_KEPT = "keeps the stack"
"""Beginning of the reason of a leaving node that this run does not remove the stack from."""

UPGRADE_UNFINISHED = "its upgrade is not over"
"""Beginning of the reason of a driver whose rollout is unfinished, or requested on the node."""

GEOMETRY_PENDING = "the MIG configuration is to change"
"""Beginning of the reason of a MIG manager whose node requests another configuration than the declared one."""

GEOMETRY_FAILED = "the MIG manager could not apply the configuration"
"""Beginning of the reason of a MIG manager that reports a failure."""

_NEEDS_ROLLOUT = (UPGRADE_UNFINISHED, GEOMETRY_PENDING, GEOMETRY_FAILED)
_UNFINISHED = EARLY | LATE | {UpgradeState.UPGRADE_REQUIRED, UpgradeState.FAILED}
_FAILED = f"{UPGRADE_UNFINISHED}: {UpgradeState.FAILED.value}"
NO_DRIVER_RESTART = "no driver restart"
"""Effect of a change of a driver's DaemonSet or pod that does not change the installation."""

KEPT_UNTIL_DELETED = "the pod keeps the previous content until it is deleted: daemonsets.update_strategy is OnDelete"
"""Reason of an operand whose outdated pod only its deletion replaces."""


def is_rolled_out(daemonset: Manifest) -> bool:
    """Whether a rollout, and not the DaemonSet controller, replaces the pods of a DaemonSet."""
    return _is_on_delete(daemonset) and _is_driver(daemonset)


def waits_for_deletion(daemonset: Manifest) -> bool:
    """Whether an operand's pods are replaced only when a person deletes them."""
    return _is_on_delete(daemonset) and not _is_driver(daemonset)


def _is_on_delete(daemonset: Manifest) -> bool:
    strategy = daemonset["spec"].get("updateStrategy", {}) if daemonset["kind"] == "DaemonSet" else {}
    return bool(strategy.get("type") == "OnDelete")


def _is_driver(daemonset: Manifest) -> bool:
    return bool(daemonset["metadata"]["labels"].get(labels.COMPONENT) == DRIVER)


def has_installed(pod: Manifest, daemonset: Manifest) -> bool:
    """Whether a driver pod has the same installation digest as its DaemonSet."""
    return installation_digest(pod) == installation_digest(daemonset["spec"]["template"])


LACKS_TOOLKIT = "there is no Driver Toolkit image for its release of CoreOS"
"""Why a node keeps its driver: another one is likely to fail, as its build would need a Red Hat entitlement."""


def _keep_reason(target: Target) -> str:
    if target.lacks_toolkit:
        return LACKS_TOOLKIT
    if not target.pool.driver.upgrade_policy.auto_upgrade:
        return "driver.upgrade_policy.auto_upgrade is off"
    left_out = target.facts is not None and target.facts.labels.get(upgrade.SKIP) == "true"
    return f"excluded by the label {upgrade.SKIP}" if left_out else ""


def with_upgrade(state: NodeState, target: Target) -> NodeState:
    """Return the state of a driver, with the rollout state of its Node object."""
    why = _keep_reason(target) if state.reason == OUTDATED else ""
    if reason := _unfinished_upgrade(target, is_kept=bool(why)):
        reasons = ": ".join(filter(None, (UPGRADE_UNFINISHED, reason, state.reason)))
        return replace(state, state=State.PROGRESSING, reason=reasons)
    return replace(state, state=State.READY, reason=f"{DRIVER_KEPT}: {why}") if why else state


def with_geometry(
    state: NodeState, target: Target, wanted: Mapping[str, str | None], inventory: Inventory
) -> NodeState:
    """Return the state of a MIG manager, with that of its node's configuration.

    ``wanted``: the final labels of the node. A run rolls out another configuration, and repeats a failed one. For
    another name of the same configuration it writes the label alone, see `kept_geometries`.
    """
    live = target.labels
    is_ready, config = state.state is State.READY, wanted.get(labels.MIG_CONFIG)
    if config is None or not (is_ready or state.reason == OUTDATED):
        return state
    if live.get(labels.MIG_CONFIG) != config:
        if has_geometry_by_plain_name(target, inventory):
            return state
        if why := _keep_reason(target):
            return replace(state, state=State.READY, reason=f"{DRIVER_KEPT}: {why}")
        reason = f"{GEOMETRY_PENDING}: {live.get(labels.MIG_CONFIG, 'none')} -> {config}"
    else:
        result = live.get(labels.MIG_STATE, "")
        if not is_ready or result == labels.MIG_SUCCESS:
            return state
        is_failed = result == labels.MIG_FAILED
        reason = f"{GEOMETRY_FAILED}: {config}" if is_failed else f"applies {config} ({result or 'not begun'})"
    return replace(state, state=State.PROGRESSING, reason=reason)


def _unfinished_upgrade(target: Target, *, is_kept: bool) -> str:
    if target.facts is None:
        return ""
    labels, notes = target.facts.labels, target.facts.annotations
    state = upgrade.parse_state(labels.get(upgrade.STATE, ""))
    if state is UpgradeState.FAILED:
        return ": ".join(filter(None, (state.value, notes.get(upgrade.REASON, ""))))
    if state in EARLY | LATE or (state is UpgradeState.UPGRADE_REQUIRED and not is_kept):
        return state.value
    if not target.pool.driver.upgrade_policy.auto_upgrade:
        marked = upgrade.STATE in labels or any(key in notes for key in upgrade.ALL_ANNOTATIONS)
        return "what it wrote on the node is not taken back yet" if marked else ""
    is_requested = notes.get(upgrade.REQUESTED) == "true" or upgrade.SAFE_LOAD in notes or upgrade.CORDONED in notes
    return "it asks for one" if is_requested and not is_kept else ""


def upgrade_of(node: NodeFacts) -> tuple[str, ...]:
    """Return the state of an unfinished rollout on a node, and why it failed; empty without one."""
    value = node.labels.get(upgrade.STATE, "")
    if upgrade.parse_state(value) not in _UNFINISHED:
        return ()
    return tuple(filter(None, (value, node.annotations.get(upgrade.REASON, ""))))


def has_stale_rollout(target: Target) -> bool:
    """Whether a node with a host driver has an unfinished rollout of the stack's driver."""
    return target.driver.on_host and target.facts is not None and bool(upgrade_of(target.facts))


def state_between_runs(state: NodeState) -> NodeState:
    """Return the state of a driver between runs, where a failed upgrade is failed; a run retries it."""
    return replace(state, state=State.FAILED) if state.reason.startswith((_FAILED, GEOMETRY_FAILED)) else state


def needs_rollout(states: Mapping[tuple[str, str], NodeState]) -> bool:
    """Whether any node needs a rollout: see `nodes_to_upgrade`."""
    return any(nodes_to_upgrade(states))


def nodes_to_upgrade(states: Mapping[tuple[str, str], NodeState]) -> Iterator[str]:
    """Yield the nodes that need another driver, that leave, or that have an unfinished rollout."""
    for (component, node), state in states.items():
        if not state.reason:
            continue  # most states of a large fleet
        is_outdated = component == DRIVER and node and state.reason == OUTDATED
        if is_outdated or state.reason.startswith(_NEEDS_ROLLOUT) or state.state is State.LEAVING:
            yield node


def is_kept(state: NodeState | None) -> bool:
    """Whether a driver keeps its previous content."""
    return state is not None and state.reason.startswith(DRIVER_KEPT)


Desired = Mapping[str, Sequence[Manifest]]
Pods = Mapping[tuple[str, str], Sequence[Manifest]]


def kept_driver_groups(targets: Iterable[Target], desired: Desired, pods: Pods) -> dict[str, dict[str, str | None]]:
    """Return the labels of the driver groups that nodes keep until their driver is replaced, by node."""
    by_group = {
        each["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]: each
        for each in desired.get(DRIVER, ())
        if each["kind"] == "DaemonSet"
    }
    return {
        target.name: {labels.DRIVER_GROUP: group}
        for target in targets
        if (wanted := by_group.get(target.driver_group)) is not None
        if target.facts and (group := target.facts.labels.get(labels.DRIVER_GROUP, "")) not in {"", target.driver_group}
        if any(not has_installed(pod, wanted) for pod in pods.get((DRIVER, target.name), ()) if is_staying(pod))
    }


def kept_geometries(
    targets: Iterable[Target], inventory: Inventory, desired: Desired, pods: Pods
) -> dict[str, dict[str, str | None]]:
    """Return the labels of the MIG configurations that nodes keep until the rollout reaches them, by node.

    A node that joins requests its configuration at once. So does none with a host driver, whose GPUs may be in use.
    A node that has the devices already requests them by their new name once its MIG manager has a file with that name:
    the MIG manager finds them as they should be, and pauses nothing (NVIDIA/mig-parted, reconfigure-mig.sh).
    """
    managers = (each for each in desired.get(mig_manager.NAME, ()) if each["kind"] == "DaemonSet")
    content = next((digest_of(each["spec"]["template"]) for each in managers), None)
    kept = dict[str, dict[str, str | None]]()
    for target in targets:
        joins = not target.driver.on_host and not {labels.INVENTORY, labels.MIG_CONFIG} & target.labels.keys()
        of_node = pods.get((mig_manager.NAME, target.name), ())
        is_known = content is not None and any(
            digest_of(pod) == content and pod_view.is_ready(pod) and is_staying(pod) for pod in of_node
        )
        joins = joins or (is_known and has_geometry_by_plain_name(target, inventory))
        if mig_manager.wants_geometry(target) and not joins:
            kept[target.name] = {labels.MIG_CONFIG: target.labels.get(labels.MIG_CONFIG)}
    return kept


def is_staying(pod: Manifest) -> bool:
    """Whether a pod is not terminating."""
    return not pod["metadata"].get("deletionTimestamp")


def with_node_labels(desired: Desired, other: Mapping[str, Mapping[str, str | None]]) -> Desired:
    """Return the manifests with other labels on some nodes."""
    changed = [
        {**item, "metadata": {**metadata, "labels": {**metadata["labels"], **other[metadata["name"]]}}}
        if (metadata := item["metadata"])["name"] in other
        else item
        for item in desired.get("node_labels", ())
    ]
    return {**desired, "node_labels": changed}
