"""The inventory: one YAML file that declares the nodes, their GPUs and their software.

A file becomes a `Source` (`document`), a `Document` whose values have line numbers (`yaml_parser`), data that fits the
schema (`references`, `json_schema`), and an `Inventory` (`resolve`), which `checks` and `hardware` check. `loader` does
all steps. Errors of the schema become findings in plain English (`schema_errors`), without secrets (`redaction`).
``make docs`` generates ``schema.json`` from the settings in `model` and `resolve`.

May import `model`, `files` and `releases`.
"""

from __future__ import annotations

from gpu_provision.inventory.json_schema import schema
from gpu_provision.inventory.loader import check, load, validate
from gpu_provision.inventory.pyinfra_inventory import groups, hosts_of

__all__ = ["check", "groups", "hosts_of", "load", "schema", "validate"]
