"""The operator validator: on every node it proves driver, toolkit, CUDA and plugin one after the other."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, operands, pods, scripts
from gpu_provision.components.objects import cluster_role, role, rule, service_account
from gpu_provision.model.cluster import Context, Manifest
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import ValidatorSpec

NAME = "validator"
TITLE = "NVIDIA operator validator"
REQUIRES: tuple[str, ...] = ("driver_validation",)

ACCOUNT = "nvidia-operator-validator"
_MADE = frozenset({"nvidia-cuda-validator", "nvidia-device-plugin-validator"})
_SELECTOR = {labels.APP: ACCOUNT, labels.PART_OF: "gpu-operator"}

# The reference's third rule, on finalizers of its custom resources, is left out: there are none here.
_RULES = [
    operands.USE_PRIVILEGED_SCC,
    rule("", ["pods"], ["create", "get", "list", "watch", "update", "patch", "delete"]),
    rule("apps", ["daemonsets"], ["get", "list", "watch"]),
]


def spec(inventory: Inventory) -> ValidatorSpec:
    """Return the spec; the validator cannot be off."""
    return inventory.specs.validator


def has_made(pod: Manifest) -> bool:
    """Whether a pod is one that a validator runs vectorAdd in. It has no controller, and none of the stack's labels."""
    app = (pod["metadata"].get("labels") or {}).get(labels.APP)
    return app in _MADE and pod["spec"].get("serviceAccountName") == ACCOUNT


def manifests(spec: ValidatorSpec, context: Context) -> list[Manifest]:
    """Return access rights and the DaemonSet."""
    namespace = context.namespace
    return [
        service_account(ACCOUNT, namespace),
        *role(ACCOUNT, namespace, _RULES, subject=ACCOUNT),
        *cluster_role(ACCOUNT, namespace, [operands.READ_NODES], subject=ACCOUNT),
        operands.daemon_set(
            context,
            ACCOUNT,
            selector=_SELECTOR,
            node_selector={labels.deploy("operator-validator"): "true"},
            pod=_pod(spec, context),
        ),
    ]


def _pod(spec: ValidatorSpec, context: Context) -> dict[str, Any]:
    with_plugin = context.inventory.specs.device_plugin.enabled
    return operands.pod(
        serviceAccountName=ACCOUNT,
        runtimeClassName=operands.runtime_class(context),
        imagePullSecrets=pods.pull_secrets(spec.image_pull_secrets),
        initContainers=[
            operands.driver_validation(context),
            _validation(
                context,
                "toolkit-validation",
                "toolkit",
                {"NVIDIA_VISIBLE_DEVICES": "all", "WITH_WAIT": "false"},
            ),
            _validation(context, "cuda-validation", "cuda", {"WITH_WAIT": "false", **_workload(spec, context)}),
            *([_plugin_validation(spec, context)] if with_plugin else []),
        ],
        containers=[_sleeper(spec)],
        volumes=[
            operands.RUN_NVIDIA_VALIDATIONS,
            pods.host_volume("driver-install-dir", operands.DRIVER_ROOT),
            operands.HOST_ROOT,
            operands.HOST_DEV_CHAR,
        ],
    )


def _validation(context: Context, name: str, component: str, env: pods.Environment) -> dict[str, Any]:
    return operands.validation(
        context,
        name,
        component,
        env=env,
        security=pods.PRIVILEGED_ROOT,
        mounts=[operands.MOUNT_VALIDATIONS_BOTH_WAYS],
    )


def _plugin_validation(spec: ValidatorSpec, context: Context) -> dict[str, Any]:
    """Wait for the resource only: the vectorAdd that requests it is a component of its own here, with a log."""
    env = {
        "WITH_WAIT": "false",
        "WITH_WORKLOAD": "false",
        "MIG_STRATEGY": context.inventory.specs.mig_strategy,
        **_workload(spec, context),
    }
    return _validation(context, "plugin-validation", "plugin", env)


def _workload(spec: ValidatorSpec, context: Context) -> dict[str, str | pods.Field]:
    """What the validator needs to know to start a pod of its own."""
    secrets = ",".join(spec.image_pull_secrets)
    runtime_class = operands.runtime_class(context)
    return {
        **pods.NODE_NAME,
        **pods.OPERATOR_NAMESPACE,
        "VALIDATOR_IMAGE": spec.image.reference,
        "VALIDATOR_IMAGE_PULL_POLICY": spec.image_pull_policy,
        **({"VALIDATOR_IMAGE_PULL_SECRETS": secrets} if secrets else {}),
        **({"VALIDATOR_RUNTIME_CLASS": runtime_class} if runtime_class else {}),
    }


def _sleeper(spec: ValidatorSpec) -> dict[str, Any]:
    """Return the main container: all work is done before it, and its end takes the files back."""
    return pods.container(
        ACCOUNT,
        spec.image.reference,
        imagePullPolicy=spec.image_pull_policy,
        **pods.shell(scripts.VALIDATOR_STAY),
        env=pods.environment({}, spec.env),
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", f"rm -f {operands.VALIDATIONS}/*-ready"]}}},
        securityContext=pods.PRIVILEGED_ROOT,
        resources=dict(spec.resources),
        volumeMounts=[operands.MOUNT_VALIDATIONS_BOTH_WAYS],
    )
