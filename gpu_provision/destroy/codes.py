"""Codes of findings about the removal of a stack."""

from __future__ import annotations

GPUS_IN_USE = "GP340"
NOT_GONE = "GP341"
LEFT_OVER = "GP342"
TAKEN_OVER = "GP343"
CRDS_KEPT = "GP344"
NOT_OURS_ALONE = "GP345"
HOSTS_HELD_BACK = "GP346"
PROGRAMS_KEPT = "GP347"
NO_CONTROLLER = "GP348"
BUDGET_HOLDS = "GP349"

CODES: dict[str, str] = {
    GPUS_IN_USE: "Pods use GPUs of nodes that are to lose their driver",
    NOT_GONE: "Something that was deleted is still there; the finding names the first cause",
    LEFT_OVER: "The audit after a removal found something of the stack",
    TAKEN_OVER: "A label, annotation or cordon stays on a node: another program or person writes it, too",
    CRDS_KEPT: "CustomResourceDefinitions stay unless they are asked for",
    NOT_OURS_ALONE: "A namespace, RuntimeClass or CustomResourceDefinition stays: others made it, or use it",
    HOSTS_HELD_BACK: "Hosts were left as they are, since the cluster still has something of the stack",
    PROGRAMS_KEPT: "The container toolkit's programs stay on hosts whose host phase is off",
    NO_CONTROLLER: "Pods that are evicted have no controller that would start them again",
    BUDGET_HOLDS: "A PodDisruptionBudget keeps pods that a removal would evict",
}
"""Code -> title."""
