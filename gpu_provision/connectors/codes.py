"""Every finding about hosts that are reached through the Kubernetes API."""

from __future__ import annotations

NODE_AWAY = "GP690"
POD_AWAY = "GP691"
NO_SHELL = "GP692"

CODES: dict[str, str] = {
    NODE_AWAY: "The cluster has no node of this name, or the node is not ready",
    POD_AWAY: "The helper pod does not start on a node",
    NO_SHELL: "No command can be run on a node through its helper pod",
}
"""Code -> title."""
