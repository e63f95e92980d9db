"""What can be read off one node: whether its driver has to be replaced, is proven, and whose its cordon is. Pure."""

from __future__ import annotations

from gpu_provision.components import labels
from gpu_provision.rollout import cordons, states
from gpu_provision.rollout.snapshot import Node
from gpu_provision.rollout.states import EARLY, LATE, UpgradeState

_CORDONED_BY_THE_REFERENCE = (EARLY | LATE | {UpgradeState.FAILED}) - {UpgradeState.CORDON_REQUIRED}


def is_current(node: Node) -> bool:
    """Whether the driver pod is as wanted. A pod template may differ in what the installation does not depend on."""
    return node.driver is not None and node.driver.digest == node.wanted.digest


def is_forced(node: Node) -> bool:
    """Whether a pod that is as wanted is to be replaced all the same."""
    if node.says(states.REQUESTED):
        return True
    began_with = node.annotations.get(states.BEGAN_WITH)
    return node.says(states.FORCED) and node.driver is not None and node.driver.uid == began_with


def must_restart(node: Node) -> bool:
    """Whether the driver pod of a node that has been emptied is to be deleted."""
    return not is_current(node) or is_forced(node)


def why(node: Node) -> str:
    """Say why a node has to be emptied, before its driver is brought up again or goes; empty if it has not."""
    if node.is_leaving:
        return "no longer in the inventory"
    if node.driver is None:
        return ""
    if not is_current(node):
        return f"driver {node.wanted.version} is wanted" if node.wanted.version else "other content is wanted"
    if is_forced(node):
        return "somebody asked for it"
    if node.annotations.get(states.SAFE_LOAD):
        return "the driver waits for an empty node before it loads"
    return "the driver cannot be installed while pods use the one that is loaded" if node.driver.is_held_up else ""


def is_untouched(node: Node) -> bool:
    """Whether the driver pod is still the one that the upgrade found."""
    return node.driver is not None and node.driver.uid == node.annotations.get(states.BEGAN_WITH)


def disproof(node: Node) -> str:
    """Say what validation found wrong with the driver pod that is there now; empty if nothing, or not yet."""
    found = node.proof
    if found is None:
        return ""
    if not found.passed:
        return f"the validation failed: {found.reason}" if found.reason else "the validation failed"
    if found.version and node.wanted.version and found.version != node.wanted.version:
        return f"driver {found.version} is loaded, {node.wanted.version} is wanted"
    return ""


def is_proven(node: Node) -> bool:
    """Whether exactly the wanted driver has been shown to work in the pod that is there now."""
    return is_current(node) and node.proof is not None and not disproof(node)


def is_well(node: Node) -> bool:
    """Whether the node does its work with the wanted driver, as far as can be seen."""
    ready = node.driver is not None and node.driver.is_ready and not node.driver.is_terminating
    return node.is_ready and ready and is_current(node) and not disproof(node)


def is_marked(node: Node) -> bool:
    """Whether a rollout has written anything on a node."""
    return states.STATE in node.labels or any(key in node.annotations for key in states.ALL_ANNOTATIONS)


def owns_cordon(node: Node) -> bool:
    """Whether a node's cordon is ours to lift: it is marked so, and nobody else has set it since."""
    return node.is_cordoned and cordons.is_of_rollout(node.annotations, node.cordoned_by)


def _is_for_reboot(node: Node) -> bool:
    """Whether the cordon is that of a reboot of the machine, which the host phase lifts, in this run or the next."""
    return labels.CORDONED in node.annotations


def inherits_cordon(node: Node) -> bool:
    """Whether the reference cordoned a node for an upgrade that we go on with; it has no mark for its cordons."""
    ours = states.CORDONED in node.annotations or states.TARGET in node.annotations
    theirs = node.is_cordoned and not node.says(states.WAS_CORDONED) and not _is_for_reboot(node)
    return theirs and not ours and node.state in _CORDONED_BY_THE_REFERENCE
