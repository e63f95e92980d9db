"""The inventory: one YAML file that says which nodes have which GPUs, and which software they run."""

from __future__ import annotations

from gpu_provision.inventory.groups import groups, hosts_of
from gpu_provision.inventory.loader import check, examine, load
from gpu_provision.inventory.schema_check import schema

__all__ = ["check", "examine", "groups", "hosts_of", "load", "schema"]
