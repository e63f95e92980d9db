"""Driver validation: on every GPU node, a CUDA vectorAdd that does not ask Kubernetes for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_provision.components import operands, pods, validations
from gpu_provision.components.node_labels import able_to_run
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
    spec = _pod_spec(context)
    return [_pod(context, target, spec) for target in able_to_run(context, "container-toolkit")]


def _pod_spec(context: Context) -> dict[str, Any]:
    """Return what the pods of all nodes have in common, with a place for the node's name."""
    container = validations.vector_add(
        context,
        "cuda-validation",
        env=pods.environment({"NVIDIA_VISIBLE_DEVICES": "all"}),
        securityContext=pods.PRIVILEGED,
    )
    return validations.pod_spec(context, container, nodeName="", runtimeClassName=operands.runtime_class(context))


def _pod(context: Context, target: Target, common: Mapping[str, Any]) -> Manifest:
    # Past the scheduler: no resource is requested, and no taint is in the way.
    spec = {**common, "nodeName": target.name}
    validated = {
        "driver": validations.driver_of(target),
        "toolkit": validations.toolkit_image(context),
    }
    return validations.pod(context, target, APP, spec, validated)
