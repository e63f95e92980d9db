"""Device plugin validation: on every GPU node, a CUDA vectorAdd that asks Kubernetes for one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_provision.components import operands, validations
from gpu_provision.components.node_labels import able_to_run
from gpu_provision.model.cluster import Context, Manifest, Target
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import ValidatorSpec

NAME = "device_plugin_validation"
TITLE = "Device plugin validation"
REQUIRES: tuple[str, ...] = ("driver_validation", "device_plugin")

APP = "nvidia-device-plugin-validation"


def spec(inventory: Inventory) -> ValidatorSpec | None:
    """Return the validator's spec, whose image holds vectorAdd, or None if there is no device plugin."""
    return inventory.specs.validator if inventory.specs.device_plugin.enabled else None


def manifests(_spec: ValidatorSpec, context: Context) -> list[Manifest]:
    """Return a pod per target that can run it."""
    spec = _pod_spec(context)
    return [_pod(context, target, spec) for target in able_to_run(context, "container-toolkit", "device-plugin")]


def _pod_spec(context: Context) -> dict[str, Any]:
    """Return what the pods of all nodes have in common, with a place for the node's name."""
    container = validations.vector_add(context, "plugin-validation", resources={"limits": {"nvidia.com/gpu": 1}})
    return validations.pod_spec(
        context, container, affinity=_only_on(""), runtimeClassName=operands.runtime_class(context)
    )


def _pod(context: Context, target: Target, common: Mapping[str, Any]) -> Manifest:
    spec = {**common, "affinity": _only_on(target.name)}
    validated = {
        "device_plugin": context.inventory.specs.device_plugin.image.reference,
        "driver": validations.driver_of(target),
        "toolkit": validations.toolkit_image(context),
    }
    return validations.pod(context, target, APP, spec, validated)


def _only_on(node: str) -> dict[str, object]:
    """Bind the pod to a node and yet let the scheduler count its GPU, which ``nodeName`` would bypass."""
    by_name = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [by_name]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
