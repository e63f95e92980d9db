"""Device plugin validation: on every GPU node, a CUDA vectorAdd that asks Kubernetes for one GPU."""

from __future__ import annotations

from gpu_provision.components import operands, validations
from gpu_provision.components.node_labels import is_kept_off
from gpu_provision.model.cluster import Context, Manifest, Target
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import ValidatorSpec

NAME = "device_plugin_validation"
TITLE = "Device plugin validation"
REQUIRES: tuple[str, ...] = ("device_plugin",)

APP = "nvidia-device-plugin-validation"


def spec(inventory: Inventory) -> ValidatorSpec | None:
    """Return the validator's spec, whose image holds vectorAdd, or None if there is no device plugin."""
    return inventory.specs.validator if inventory.specs.device_plugin.enabled else None


def manifests(_spec: ValidatorSpec, context: Context) -> list[Manifest]:
    """Return a pod per target that can run it."""
    return [
        _pod(context, target)
        for target in context.targets
        if not is_kept_off(context, target, "container-toolkit", "device-plugin")
    ]


def _pod(context: Context, target: Target) -> Manifest:
    container = validations.vector_add(context, "plugin-validation", resources={"limits": {"nvidia.com/gpu": 1}})
    spec = validations.pod_spec(
        context,
        container,
        affinity=_only_on(target.name),
        runtimeClassName=operands.runtime_class(context),
    )
    validated = {
        "device_plugin": context.inventory.specs.device_plugin.image.reference,
        "driver": validations.driver_image(target),
        "toolkit": validations.toolkit_image(context),
    }
    return validations.pod(context, target, APP, spec, validated)


def _only_on(node: str) -> dict[str, object]:
    """Bind the pod to a node and yet let the scheduler count its GPU, which ``nodeName`` would bypass."""
    by_name = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [by_name]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
