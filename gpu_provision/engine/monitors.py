"""Whether there are ServiceMonitors, by their definition: the Prometheus Operator may come after the stack. Pure.

What is served is asked for when a stack is read; the definition can be watched, so that nobody asks again and again.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_provision.cluster.observe import SERVICE_MONITORS
from gpu_provision.components import dcgm_exporter
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.inventory import Inventory

DEFINITION = ObjectRef("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", SERVICE_MONITORS)
_VERSION = "v1"


def are_wanted(inventory: Inventory) -> bool:
    """Whether a stack has a ServiceMonitor where there are such."""
    found = dcgm_exporter.spec(inventory)
    return bool(found and found.service_monitor.enabled)


def are_served(definitions: Iterable[Manifest]) -> bool:
    """Whether ServiceMonitors can be made, by their definition as it is, if there is one."""
    return any(_is_established(each) and _has_version(each) for each in definitions)


def _is_established(definition: Manifest) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _has_version(definition: Manifest) -> bool:
    return any(each["name"] == _VERSION and each["served"] for each in definition["spec"]["versions"])
