"""The inventory: one YAML file that says which nodes have which GPUs, and which software they run."""

from __future__ import annotations

from gpu_provision.inventory.json_schema import schema
from gpu_provision.inventory.loader import check, load, validate
from gpu_provision.inventory.pyinfra_inventory import groups, hosts_of

__all__ = ["check", "groups", "hosts_of", "load", "schema", "validate"]
