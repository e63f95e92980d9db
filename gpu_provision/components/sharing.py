"""Configurations of the device plugin: what they declare, and how often a node offers each GPU by them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from gpu_provision.components.operands import config_files
from gpu_provision.model.cluster import RenderContext
from gpu_provision.model.specs import DevicePluginSpec

_MPS = "mps"
_PREFIX = "nvidia.com/"  # of resources; a configuration may leave it out


def configurations(context: RenderContext) -> Mapping[str, str]:
    """Return the texts of the configurations by name: the inventory's, or those of the ConfigMap that it names.

    Empty without any, or if the ConfigMap was not read.
    """
    spec = context.inventory.specs.device_plugin
    if not spec.config_map:
        return {}
    declared = {name: yaml.safe_dump(dict(each), sort_keys=False) for name, each in spec.config.data.items()}
    return declared or config_files(context, spec.config_map)


def mps_configurations(context: RenderContext) -> dict[str, str]:
    """Return the texts of the configurations that declare MPS, by name."""
    return {name: text for name, text in configurations(context).items() if sharing_of(parse(text))[0] == _MPS}


@lru_cache(256)
def parse(text: str) -> Mapping[str, Any]:
    """Return a configuration; empty for a text that is none."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, AttributeError, ValueError, RecursionError):  # such as a date that does not exist
        return {}
    return found if isinstance(found, dict) else {}


def sharing_of(configuration: Mapping[str, Any]) -> tuple[str, dict[str, int]]:
    """Return by what a configuration shares GPUs, and how often it offers each device of a resource.

    As in the plugin, MPS has precedence: https://github.com/NVIDIA/k8s-device-plugin, api/config/v1/sharing.go. What
    the plugin would refuse shares nothing.
    """
    try:
        sharing = configuration.get("sharing") or {}
        kind = next((kind for kind in (_MPS, "timeSlicing") if sharing.get(kind)), "")
        shared = [(str(each["name"]), int(each["replicas"])) for each in sharing[kind]["resources"]] if kind else []
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return "", {}
    return kind, {name if name.startswith(_PREFIX) else f"{_PREFIX}{name}": count for name, count in shared}


def expected_replicas(
    plugin: DevicePluginSpec, choice: str, read: Mapping[str, str] | None = None
) -> Mapping[str, int] | None:
    """Return how often a node offers each device, by resource; None if its configuration is not known.

    Args:
        choice: Value of the node's label; empty for the default.
        read: Content of the ConfigMap that the inventory names.
    """
    name, known = choice or plugin.default_config, plugin.config.data or read or {}
    if not plugin.config_map:
        return {}
    if name not in known:  # without a choice the plugin has an empty configuration
        return {} if known and not name else None
    found = known[name]
    return sharing_of(parse(found) if isinstance(found, str) else found)[1]
