"""The inventory: one YAML file that says which nodes have which GPUs, and which software they run.

A file becomes a `Source` (`document`), a `Document` whose values know their lines (`yaml_parser`), data that fits the
schema (`values`, `json_schema`), an `Inventory` (`resolve`), and is then checked for its meaning (`checks`,
`hardware`); `loader` does all of it. Problems become findings in plain words (`schema_errors`), without secrets
(`redaction`). ``make docs`` generates ``schema.json`` from the settings' declarations in `model` and `resolve`.

May import `model`, `files` and `releases`.
"""

from __future__ import annotations

from gpu_provision.inventory.json_schema import schema
from gpu_provision.inventory.loader import check, load, validate
from gpu_provision.inventory.pyinfra_inventory import groups, hosts_of

__all__ = ["check", "groups", "hosts_of", "load", "schema", "validate"]
