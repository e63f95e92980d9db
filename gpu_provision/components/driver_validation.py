"""Driver validation: on every GPU node, a CUDA vectorAdd that does not ask Kubernetes for a GPU."""

from __future__ import annotations

from gpu_provision.components import operands, pods, validations
from gpu_provision.components.node_labels import is_kept_off
from gpu_provision.model.cluster import Context, Manifest, Target
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import ValidatorSpec

NAME = "driver_validation"
TITLE = "Driver validation"
REQUIRES: tuple[str, ...] = ("driver", "toolkit")

APP = "nvidia-driver-validation"


def spec(inventory: Inventory) -> ValidatorSpec:
    """Return the validator's spec, whose image holds vectorAdd; drivers of hosts are validated, too."""
    return inventory.specs.validator


def manifests(_spec: ValidatorSpec, context: Context) -> list[Manifest]:
    """Return a pod per target that can run it."""
    return [
        _pod(context, target) for target in context.targets if not is_kept_off(context, target, "container-toolkit")
    ]


def _pod(context: Context, target: Target) -> Manifest:
    container = validations.vector_add(
        context,
        "cuda-validation",
        env=pods.environment({"NVIDIA_VISIBLE_DEVICES": "all"}),
        securityContext=pods.PRIVILEGED,
    )
    spec = validations.pod_spec(
        context,
        container,
        nodeName=target.name,  # past the scheduler: no resource is requested, and no taint is in the way
        runtimeClassName=operands.runtime_class(context),
    )
    validated = {
        "driver": validations.driver_image(target),
        "toolkit": validations.toolkit_image(context),
    }
    return validations.pod(context, target, APP, spec, validated)
