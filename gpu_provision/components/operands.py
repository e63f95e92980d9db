"""What all operands share: one DaemonSet shape, the containers that wait for or run a validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_provision.components import labels, pods, scripts
from gpu_provision.components.objects import compact, digest, manifest, rule
from gpu_provision.components.toolkit_runtimes import needs_no_class
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.settings import pod_fields
from gpu_provision.model.specs import OperandSpec

# As the GPU Operator's own roles: without effect on plain Kubernetes, needed on OpenShift.
USE_PRIVILEGED_SCC = rule("security.openshift.io", ["securitycontextconstraints"], ["use"], names=["privileged"])
READ_NODES = rule("", ["nodes"], ["get", "list", "watch"])

VALIDATIONS = "/run/nvidia/validations"
DRIVER_ROOT = "/run/nvidia/driver"

RUN_NVIDIA = pods.host_volume("run-nvidia", "/run/nvidia", "Directory")
RUN_NVIDIA_VALIDATIONS = pods.host_volume("run-nvidia-validations", VALIDATIONS, "DirectoryOrCreate")
DRIVER_INSTALL_DIR = pods.host_volume("driver-install-dir", DRIVER_ROOT, "DirectoryOrCreate")
HOST_ROOT = pods.host_volume("host-root", "/")
HOST_DEV_CHAR = pods.host_volume("host-dev-char", "/dev/char")
CDI_ROOT = pods.host_volume("cdi-root", "/var/run/cdi", "DirectoryOrCreate")
OWN_VALIDATION = pods.scratch_volume("own-validation")
"""What a pod's own check found out, where no other pod can remove it."""

MOUNT_RUN_NVIDIA = pods.mount("run-nvidia", "/run/nvidia", pods.TO_CONTAINER)
MOUNT_VALIDATIONS = pods.mount("run-nvidia-validations", VALIDATIONS)
MOUNT_VALIDATIONS_BOTH_WAYS = pods.mount("run-nvidia-validations", VALIDATIONS, pods.BOTH_WAYS)
MOUNT_HOST_ROOT = pods.mount("host-root", "/host", pods.TO_CONTAINER, read_only=True)
MOUNT_OWN_VALIDATION = pods.mount(OWN_VALIDATION["name"], VALIDATIONS)

_SELECTED_BY = frozenset({labels.APP, labels.PART_OF})


def daemon_set(  # noqa: PLR0913 -- keyword-only: just the parts in which operands differ
    context: RenderContext,
    name: str,
    *,
    selector: Mapping[str, str],
    node_selector: Mapping[str, str],
    pod: Mapping[str, Any],
    extra_labels: Mapping[str, str] | None = None,
    pod_annotations: Mapping[str, str] | None = None,
    on_delete: bool = False,
) -> Manifest:
    """Return an operand's DaemonSet with everything that ``daemonsets`` of the inventory says.

    ``pod`` is the pod spec, but for what all operands share; its pods also carry ``extra_labels``, as the DaemonSet
    does. With ``on_delete``, a pod is replaced only after it was deleted.
    """
    own = {**selector, **(extra_labels or {})}
    settings = context.inventory.specs.daemonsets
    # Pods must stay selectable, so the user cannot override what selects them (as in the reference).
    users = {key: value for key, value in settings.labels.items() if key not in _SELECTED_BY}
    shared = {
        "nodeSelector": dict(node_selector),
        "tolerations": pods.operand_tolerations(context),
        "priorityClassName": settings.priority_class_name or None,
    }
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": settings.max_unavailable}}
    annotations = {**settings.annotations, **(pod_annotations or {})}
    spec = {
        "selector": {"matchLabels": dict(selector)},
        "updateStrategy": {"type": "OnDelete"} if on_delete else rolling,
        "template": {"metadata": {"labels": {**users, **own}, "annotations": annotations}, "spec": {**pod, **shared}},
    }
    return manifest(("apps/v1", "DaemonSet"), name, namespace=context.namespace, labels=own, spec=spec)


def container(  # noqa: PLR0913 -- keyword-only: just the parts in which operands differ
    spec: OperandSpec,
    name: str,
    *,
    env: pods.Environment,
    command: Sequence[str] = (),
    security: Mapping[str, Any],
    mounts: Sequence[Mapping[str, Any]] = (),
    **fields: Any,
) -> dict[str, Any]:
    """Return the main container of an operand, with everything that the inventory says of it."""
    return pods.container(
        name,
        spec.image.reference,
        imagePullPolicy=spec.image_pull_policy,
        command=list(command),
        args=list(spec.args),
        env=pods.environment(env, spec.env),
        **fields,
        securityContext=dict(security),
        resources=dict(spec.resources),
        volumeMounts=list(mounts),
    )


def configured_by(*data: Mapping[str, str]) -> dict[str, str]:
    """Return the annotation that restarts a pod when a file changes that it reads only once."""
    known = [dict(files) for files in data if files]
    return {labels.CONFIG: digest(known)} if known else {}


def config_of(context: RenderContext, config_map: str) -> Mapping[str, str]:
    """Return the files of a user's ConfigMap; empty if none is named, or nothing is known of it."""
    return context.facts.config_maps.get(config_map, {})


def runtime_class(context: RenderContext) -> str | None:
    """Return the runtime class of operands that need GPUs; None where CRI-O's hook injects them."""
    specs = context.inventory.specs
    return None if needs_no_class(context.targets, cdi=specs.cdi_enabled) else specs.runtime_class


def validation(  # noqa: PLR0913 -- keyword-only: just the parts in which validations differ
    context: RenderContext,
    name: str,
    component: str,
    *,
    env: pods.Environment,
    security: Mapping[str, Any],
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return a container that validates ``component`` and writes its file for others to wait for."""
    spec = context.inventory.specs.validator
    return pods.container(
        name,
        spec.image.reference,
        imagePullPolicy=spec.image_pull_policy,
        **pods.shell("nvidia-validator"),
        env=pods.environment({"COMPONENT": component, **env}, spec.env),
        securityContext=dict(security),
        volumeMounts=mounts,
    )


def vector_add(context: RenderContext, name: str, script: str = scripts.VECTOR_ADD, **fields: Any) -> dict[str, Any]:
    """Return a container that adds two vectors on a GPU; its termination message has the result."""
    spec = context.inventory.specs.validator
    return pods.container(
        name, spec.image.reference, imagePullPolicy=spec.image_pull_policy, **pods.shell(script), **fields
    )


def driver_validation(context: RenderContext) -> dict[str, Any]:
    """Return the init container that waits until the driver works, and says so in ``driver-ready``."""
    return _driver_validation(context)


def own_driver_validation(context: RenderContext) -> dict[str, Any]:
    """Return the same for a pod that has to know by itself, in the volume `OWN_VALIDATION`.

    A validator that ends removes what all pods see, and its successor starts only where the toolkit runs: a toolkit
    that waits for what all pods see may wait for ever.
    """
    output = "/own-validation"
    return _driver_validation(context, {"OUTPUT_DIR": output}, pods.mount(OWN_VALIDATION["name"], output))


def _driver_validation(context: RenderContext, env: Mapping[str, str] | None = None, *mounts: Any) -> dict[str, Any]:
    return validation(
        context,
        "driver-validation",
        "driver",
        env={"WITH_WAIT": "true", **pods.OPERATOR_NAMESPACE, **(env or {})},
        security=pods.PRIVILEGED_ROOT_S0,
        mounts=[
            MOUNT_HOST_ROOT,
            pods.mount("driver-install-dir", DRIVER_ROOT, pods.TO_CONTAINER),
            MOUNT_VALIDATIONS_BOTH_WAYS,
            pods.mount("host-dev-char", "/host-dev-char"),
            *mounts,
        ],
    )


def wait_for_toolkit(context: RenderContext, mount: dict[str, Any]) -> dict[str, Any]:
    """Return the init container that waits for ``toolkit-ready``; ``mount`` shows it the validations."""
    spec = context.inventory.specs.validator
    path = f"{VALIDATIONS}/toolkit-ready"
    wait = f"until [ -f {path} ]; do echo waiting for {path}; sleep 5; done"
    return pods.container(
        "toolkit-validation",
        spec.image.reference,
        imagePullPolicy=spec.image_pull_policy,
        **pods.shell(wait),
        securityContext=pods.PRIVILEGED_ROOT,
        volumeMounts=[mount],
    )


def mig_environment(context: RenderContext) -> dict[str, str]:
    """Return the settings by which a plugin handles MIG devices."""
    strategy = context.inventory.specs.mig_strategy
    return {"MIG_STRATEGY": strategy} | ({} if strategy == "none" else {"NVIDIA_MIG_MONITOR_DEVICES": "all"})


def pod(spec: OperandSpec, **fields: Any) -> dict[str, Any]:
    """Return a pod spec of fields in Kubernetes' own spelling, with those that settings of the component ask for."""
    built: dict[str, Any] = compact({**fields, **pod_fields(spec)})
    return built
