"""The operator validator: validates driver, toolkit, CUDA and plugin of every node, in this order.

Its CUDA validation is the component `driver_validation`: a vectorAdd whose verdict is in the termination message.
"""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.driver_side_cars import wait_for_driver_container
from gpu_provision.components.objects import rule
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.operand_specs import DRIVER_CONTAINER_ROOT
from gpu_provision.model.specs import ValidatorSpec

NAME = "validator"
TITLE = "NVIDIA operator validator"
REQUIRES: tuple[str, ...] = ("driver_validation",)

ACCOUNT = "nvidia-operator-validator"
VECTOR_ADD = "cuda-validation"
"""Name of the init container that runs vectorAdd."""

CUDA_POD = "nvidia-cuda-validator"
"""App label of the vectorAdd pods of the GPU Operator's validator, and of earlier versions."""

_VECTOR_ADD_APPS = frozenset({CUDA_POD, "nvidia-device-plugin-validator"})
_SELECTOR = {labels.APP: ACCOUNT, labels.PART_OF: "gpu-operator"}

# The GPU Operator's validator needs further rights, to create pods and set finalizers; this one does neither.
_READ_DAEMON_SETS = rule("apps", ["daemonsets"], ["get", "list", "watch"])
_CUDA_READY = f"{operands.VALIDATIONS}/cuda-ready"  # as the GPU Operator's CUDA validation writes it

# PID 1 ignores signals without a handler: without the trap, each rollout would wait for the grace period.
STAY = "trap 'exit 0' TERM; echo all validations are successful; while true; do sleep 86400 & wait $!; done"


def spec(inventory: Inventory) -> ValidatorSpec:
    """Return the spec; the validator cannot be off."""
    return inventory.specs.validator


def runs_vector_add(pod: Manifest) -> bool:
    """Whether a validator created the pod for vectorAdd. It has no controller and no labels of the stack."""
    app = (pod["metadata"].get("labels") or {}).get(labels.APP)
    return app in _VECTOR_ADD_APPS and pod["spec"].get("serviceAccountName") == ACCOUNT


def manifests(spec: ValidatorSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights and the DaemonSet."""
    pod = _pod(spec, context)
    return [
        *operands.access(ACCOUNT, context.namespace, _READ_DAEMON_SETS, cluster_rules=[operands.READ_NODES]),
        operands.daemon_set(
            context,
            ACCOUNT,
            selector=_SELECTOR,
            switch="operator-validator",
            pod=pod,
            # A run validates each content, so the pod is replaced also where other operands wait for their deletion.
            on_delete=False,
            gpu_containers=("toolkit-validation", VECTOR_ADD),
        ),
    ]


def _pod(spec: ValidatorSpec, context: RenderContext) -> dict[str, Any]:
    with_plugin = context.inventory.specs.device_plugin.enabled
    # Waits for the resource only: a vectorAdd that requests the resource is the component device_plugin_validation.
    plugin: pods.Environment = {
        "WITH_WAIT": "false",
        "WITH_WORKLOAD": "false",
        "MIG_STRATEGY": context.inventory.specs.mig_strategy,
        **pods.NODE_NAME,
        **pods.OPERATOR_NAMESPACE,
    }
    return operands.gpu_pod(
        spec,
        context,
        ACCOUNT,
        initContainers=[
            operands.driver_validation(context),
            *wait_for_driver_container(context),
            operands.validation(context, "toolkit", {"NVIDIA_VISIBLE_DEVICES": "all", "WITH_WAIT": "false"}),
            operands.vector_add(
                context,
                VECTOR_ADD,
                prefix=f"rm -f {_CUDA_READY}\n",
                suffix=f"touch {_CUDA_READY}\n",
                env=pods.environment({"NVIDIA_VISIBLE_DEVICES": "all"}, operands.validation_env(context, "cuda")),
                securityContext=pods.PRIVILEGED_ROOT,
                volumeMounts=[operands.MOUNT_VALIDATIONS_BOTH_WAYS],
            ),
            *([operands.validation(context, "plugin", plugin)] if with_plugin else []),
        ],
        containers=[_sleeper(spec)],
        volumes=[
            operands.RUN_NVIDIA_VALIDATIONS,
            pods.host_volume("driver-install-dir", DRIVER_CONTAINER_ROOT),
            operands.HOST_ROOT,
            operands.HOST_DEV_CHAR,
        ],
    )


def _sleeper(spec: ValidatorSpec) -> dict[str, Any]:
    """Return the main container, which only sleeps; its preStop hook removes the files.

    The user's arguments replace its script, as in the GPU Operator.
    """
    return pods.container(
        ACCOUNT,
        spec,
        command=["sh", "-c"],
        args=list(spec.args) or [STAY],
        env=pods.environment({}, spec.env),
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", f"rm -f {operands.VALIDATIONS}/*-ready"]}}},
        securityContext=pods.PRIVILEGED_ROOT,
        resources=dict(spec.resources),
        volumeMounts=[operands.MOUNT_VALIDATIONS_BOTH_WAYS],
    )
