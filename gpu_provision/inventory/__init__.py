"""The inventory: one YAML file that says which nodes have which GPUs, and which software they run."""

from __future__ import annotations

from gpu_provision.inventory.codes import CODES
from gpu_provision.inventory.examine import check, examine, load
from gpu_provision.inventory.groups import groups, hosts_of
from gpu_provision.inventory.shape import schema

__all__ = ["CODES", "check", "examine", "groups", "hosts_of", "load", "schema"]
