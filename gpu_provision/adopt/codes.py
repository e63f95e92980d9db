"""Codes of findings about taking a cluster over from the GPU Operator."""

from __future__ import annotations

NOTHING_TO_ADOPT = "GP360"
UPGRADING = "GP361"
NOT_EXPRESSIBLE = "GP362"
NOT_AS_INVENTORY = "GP363"
DRIVER_RESTARTS = "GP364"
HELM_RECORDS = "GP365"
NOT_DONE = "GP366"

CODES: dict[str, str] = {
    NOTHING_TO_ADOPT: "The cluster has no ClusterPolicy of the GPU Operator that could be taken over",
    UPGRADING: "The GPU Operator is in the middle of a driver upgrade",
    NOT_EXPRESSIBLE: "The ClusterPolicy says something that an inventory cannot say",
    NOT_AS_INVENTORY: "The inventory is not about what the GPU Operator has provisioned",
    DRIVER_RESTARTS: "A driver that runs is not the one that the inventory declares, so it is restarted",
    HELM_RECORDS: "Helm still has the release on record",
    NOT_DONE: "A step of an adoption did not come to its end",
}
"""Code -> title."""
