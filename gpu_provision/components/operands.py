"""Builders that all operands share: DaemonSets, Services, and containers that wait for or run a validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_provision.components import labels, pods
from gpu_provision.components.host_paths import with_host_paths
from gpu_provision.components.objects import compact, digest, is_at_least, manifest, role, rule, service_account
from gpu_provision.components.security_constraints import PRIVILEGED
from gpu_provision.components.toolkit_runtimes import needs_no_class
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.operand_specs import DRIVER_CONTAINER_ROOT, OperandSpec
from gpu_provision.model.settings import pod_fields
from gpu_provision.model.specs import ToolkitSpec, ValidationSettings

READ_NODES = rule("", ["nodes"], ["get", "list", "watch"])

VALIDATIONS = "/run/nvidia/validations"

RUN_NVIDIA = pods.host_volume("run-nvidia", "/run/nvidia", "Directory")
RUN_NVIDIA_VALIDATIONS = pods.host_volume("run-nvidia-validations", VALIDATIONS, "DirectoryOrCreate")
DRIVER_INSTALL_DIR = pods.host_volume("driver-install-dir", DRIVER_CONTAINER_ROOT, "DirectoryOrCreate")
HOST_ROOT = pods.host_volume("host-root", "/")
HOST_DEV_CHAR = pods.host_volume("host-dev-char", "/dev/char")
CDI_ROOT = pods.host_volume("cdi-root", "/var/run/cdi", "DirectoryOrCreate")
OWN_VALIDATION: dict[str, Any] = {"name": "own-validation", "emptyDir": {}}
"""Volume for the result of a pod's own validation, which no other pod can remove."""

MOUNT_RUN_NVIDIA = pods.mount("run-nvidia", "/run/nvidia", pods.TO_CONTAINER)
MOUNT_VALIDATIONS = pods.mount("run-nvidia-validations", VALIDATIONS)
MOUNT_VALIDATIONS_TO_CONTAINER = pods.mount("run-nvidia-validations", VALIDATIONS, pods.TO_CONTAINER)
MOUNT_VALIDATIONS_BOTH_WAYS = pods.mount("run-nvidia-validations", VALIDATIONS, pods.BOTH_WAYS)
MOUNT_HOST_ROOT = pods.mount("host-root", "/host", pods.TO_CONTAINER, read_only=True)
MOUNT_OWN_VALIDATION = pods.mount(OWN_VALIDATION["name"], VALIDATIONS)

# Annotation by which the toolkit's NRI plugin injects a device; the container's name follows. Source:
# setNRIPluginAnnotation in controllers/object_controls.go of the GPU Operator 26.7.
_NRI_DEVICES, _ALL_GPUS = "nvidia.cdi.k8s.io/container", "management.nvidia.com/gpu=all"

_SELECTED_BY = frozenset({labels.APP, labels.PART_OF})


def access(
    account: str, namespace: str, *rules: dict[str, Any], cluster_rules: Sequence[dict[str, Any]] = ()
) -> list[Manifest]:
    """Return a ServiceAccount and its rights; all may use the privileged security context, on OpenShift their own."""
    own = role(account, namespace, [PRIVILEGED, *rules], subject=account)
    everywhere = role(account, namespace, cluster_rules, subject=account, kind="ClusterRole") if cluster_rules else []
    return [service_account(account, namespace), *own, *everywhere]


def daemon_set(  # noqa: PLR0913 -- keyword-only: just the parts in which operands differ
    context: RenderContext,
    name: str,
    *,
    switch: str,
    pod: Mapping[str, Any],
    selector: Mapping[str, str] | None = None,
    node_labels: Mapping[str, str] | None = None,
    extra_labels: Mapping[str, str] | None = None,
    pod_labels: Mapping[str, str] | None = None,
    pod_annotations: Mapping[str, str] | None = None,
    tolerations: Sequence[Mapping[str, Any]] = (),
    priority_class_name: str = "",
    on_delete: bool | None = None,
    gpu_containers: Sequence[str] = (),
) -> Manifest:
    """Return an operand's DaemonSet with the settings of ``daemonsets``.

    Args:
        switch: The operand in the node labels that let operands onto a node.
        pod: The pod spec without the fields that all operands share.
        selector: Labels of its pods, by which it selects them. Default: its name as ``app``.
        node_labels: Further labels in its node selector.
        extra_labels: Further labels of the DaemonSet and of its pods.
        pod_labels: The user's labels of its pods alone, beside those of ``daemonsets``.
        pod_annotations: Annotations of its pods alone.
        tolerations: Those of its pods alone, beside those of ``daemonsets``.
        priority_class_name: The one of its pods. Default: that of ``daemonsets``.
        on_delete: Whether a pod is replaced only after it was deleted. Default: as ``daemonsets.update_strategy`` says.
        gpu_containers: Containers that see all GPUs; an NRI plugin injects them where no runtime class does.
    """
    selector = selector or {labels.APP: name}
    own = {**selector, **(extra_labels or {})}
    settings = context.inventory.specs.daemonsets
    # Pods must stay selectable: as in the GPU Operator, the user cannot override these labels.
    wanted = {**settings.labels, **(pod_labels or {})}
    users = {key: value for key, value in wanted.items() if key not in _SELECTED_BY}
    shared = {
        "nodeSelector": {labels.deploy_label(switch): "true", **(node_labels or {})},
        "tolerations": pods.operand_tolerations(context, tolerations),
        "priorityClassName": priority_class_name or settings.priority_class_name or None,
        "securityContext": dict(settings.pod_security_context),
    }
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": settings.max_unavailable}}
    with_plugin = context.inventory.specs.nri_plugin_enabled
    devices = {f"{_NRI_DEVICES}.{each}": _ALL_GPUS for each in gpu_containers if with_plugin}
    annotations = {**settings.annotations, **(pod_annotations or {}), **devices}
    on_delete = settings.update_strategy == "OnDelete" if on_delete is None else on_delete
    spec = {
        "selector": {"matchLabels": dict(selector)},
        "updateStrategy": {"type": "OnDelete"} if on_delete else rolling,
        "template": {
            "metadata": {"labels": {**users, **own}, "annotations": annotations},
            "spec": with_host_paths({**pod, **shared}, context),
        },
    }
    return manifest(("apps/v1", "DaemonSet"), name, namespace=context.namespace, labels=own, spec=spec)


def container(  # noqa: PLR0913 -- keyword-only: just the parts in which operands differ
    spec: OperandSpec,
    name: str,
    *,
    env: pods.Environment,
    users: pods.Environment | None = None,
    command: Sequence[str] = (),
    args: Sequence[str] = (),
    security: Mapping[str, Any],
    mounts: Sequence[Mapping[str, Any]] = (),
    **fields: Any,
) -> dict[str, Any]:
    """Return the main container of an operand, with its settings in the inventory.

    The user's arguments follow ``args``; ``users`` are the user's variables if not all of them are passed on.
    """
    return pods.container(
        name,
        spec,
        image=fields.pop("image", ""),
        command=list(command),
        args=[*args, *spec.args],
        env=pods.environment(env, spec.env if users is None else users),
        **fields,
        securityContext=dict(security),
        resources=dict(spec.resources),
        volumeMounts=list(mounts),
    )


def service(  # noqa: PLR0913 -- keyword-only: just the parts in which Services differ
    context: RenderContext,
    name: str,
    port: tuple[str, int],
    *,
    kind: str = "ClusterIP",
    annotations: Mapping[str, str] | None = None,
    is_local: bool = False,
) -> Manifest:
    """Return a Service of one named port for the pods of an operand.

    A local one reaches only the pod of the same node. The field is on by default since Kubernetes 1.22; older servers
    refuse it.
    """
    is_limited = is_local and is_at_least(context.facts.version, (1, 22))
    fields, own = {"internalTrafficPolicy": "Local"} if is_limited else {}, {labels.APP: name}
    ports = [{"name": port[0], "port": port[1], "targetPort": port[1], "protocol": "TCP"}]
    spec = {"type": kind, **fields, "selector": own, "ports": ports}
    metadata: dict[str, Any] = {"namespace": context.namespace, "labels": own, "annotations": annotations}
    return manifest(("v1", "Service"), name, **metadata, spec=spec)


def config_annotation(*data: Mapping[str, str]) -> dict[str, str]:
    """Return the annotation that restarts a pod if a file changes that the pod reads only at its start."""
    known = [dict(files) for files in data if files]
    return {labels.CONFIG: digest(known)} if known else {}


def config_files(context: RenderContext, config_map: str) -> Mapping[str, str]:
    """Return the files of a user's ConfigMap; empty if none is named, or its content is unknown.

    One of ``extra_objects`` is known before it is in the cluster.
    """
    for each in context.inventory.extra_objects:
        metadata = each["metadata"]
        namespace = metadata.get("namespace", context.namespace)
        if (each["kind"], metadata["name"], namespace) == ("ConfigMap", config_map, context.namespace):
            return dict(each.get("data", {}))
    return context.facts.config_maps.get(config_map, {})


def runtime_class(context: RenderContext) -> str | None:
    """Return the runtime class of operands that need GPUs; None if CRI-O's hook or an NRI plugin injects them."""
    specs = context.inventory.specs
    needs_none = specs.nri_plugin_enabled or needs_no_class(context.targets, cdi=specs.cdi_enabled)
    return None if needs_none else specs.runtime_class


def validation(
    context: RenderContext,
    component: str,
    env: pods.Environment,
    *,
    security: Mapping[str, Any] = pods.PRIVILEGED_ROOT,
    mounts: Sequence[Mapping[str, Any]] = (MOUNT_VALIDATIONS_BOTH_WAYS,),
) -> dict[str, Any]:
    """Return a container that validates ``component`` and writes the file that others wait for."""
    spec = context.inventory.specs.validator
    return pods.container(
        f"{component}-validation",
        spec,
        **pods.shell("nvidia-validator"),
        env=pods.environment({"COMPONENT": component, **env}, {**spec.env, **validation_env(context, component)}),
        securityContext=dict(security),
        resources=dict(spec.resources),
        volumeMounts=list(mounts),
    )


def validation_env(context: RenderContext, component: str) -> pods.Environment:
    """Return the user's variables of one validation, such as that of ``driver``."""
    settings = getattr(context.inventory.specs.validator, component, ValidationSettings())
    return dict(settings.env)


def vector_add(
    context: RenderContext,
    name: str,
    *,
    prefix: str = "",
    suffix: str = "",
    gpus: Mapping[str, int | str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return a container that adds two vectors on a GPU, between other lines of shell.

    The termination message has the boot ID, the driver and the output of the sample. ``gpus`` are the resources that
    it requests beside those of the validator.
    """
    spec, script = context.inventory.specs.validator, prefix + pods.script("vector-add") + suffix
    limits = {**spec.resources.get("limits", {}), **(gpus or {})}
    resources = {**spec.resources, **({"limits": limits} if limits else {})}
    return pods.container(name, spec, **pods.shell(script), **fields, resources=resources)


def driver_validation(context: RenderContext, *, own: bool = False) -> dict[str, Any]:
    """Return the init container that waits for a working driver and writes ``driver-ready``.

    An ``own`` one writes the file to the volume `OWN_VALIDATION`. The toolkit needs that: a validator that ends removes
    the shared files, and its successor starts only after the toolkit. A toolkit that waits for them would deadlock.
    """
    output = "/own-validation"
    return validation(
        context,
        "driver",
        {"WITH_WAIT": "true", **pods.OPERATOR_NAMESPACE, **({"OUTPUT_DIR": output} if own else {})},
        security=pods.PRIVILEGED_ROOT_S0,
        mounts=[
            MOUNT_HOST_ROOT,
            pods.mount("driver-install-dir", DRIVER_CONTAINER_ROOT, pods.TO_CONTAINER),
            MOUNT_VALIDATIONS_BOTH_WAYS,
            pods.mount("host-dev-char", "/host-dev-char"),
            *([pods.mount(OWN_VALIDATION["name"], output)] if own else []),
        ],
    )


def entrypoint(context: RenderContext, *names: str) -> dict[str, str]:
    """Return the file of an entrypoint: it waits for the driver validation, then runs these scripts.

    Validators before 24.6.0 write other files (NVIDIA/gpu-operator, commit 185d521).
    """
    is_old = not is_at_least(context.inventory.specs.validator.image.version, (24, 6))
    return {"entrypoint.sh": pods.script("wait-for-driver-by-name" if is_old else "wait-for-driver", *names)}


def wait_for_toolkit(context: RenderContext, mount: dict[str, Any]) -> dict[str, Any]:
    """Return the init container that waits for ``toolkit-ready`` in the volume of ``mount``."""
    path, spec = f"{VALIDATIONS}/toolkit-ready", context.inventory.specs.validator
    return pods.container(
        "toolkit-validation",
        spec,
        **pods.shell(f"until [ -f {path} ]; do echo waiting for {path}; sleep 5; done"),
        env=pods.environment({}, validation_env(context, "toolkit")),
        securityContext=pods.PRIVILEGED_ROOT,
        resources=dict(spec.resources),
        volumeMounts=[mount],
    )


def mig_environment(context: RenderContext) -> dict[str, str]:
    """Return the settings by which a plugin handles MIG devices."""
    strategy = context.inventory.specs.mig_strategy
    return {"MIG_STRATEGY": strategy} | ({} if strategy == "none" else {"NVIDIA_MIG_MONITOR_DEVICES": "all"})


def cdi_hook(toolkit: ToolkitSpec) -> dict[str, str]:
    """Return the setting by which CDI specifications call the toolkit's hook; empty if the hosts have their own."""
    path = f"{toolkit.install_dir}/toolkit/nvidia-cdi-hook"
    return {"NVIDIA_CDI_HOOK_PATH": path} if toolkit.enabled else {}


def gpu_pod(spec: OperandSpec, context: RenderContext, account: str, **fields: Any) -> dict[str, Any]:
    """Return the pod spec of an operand that sees the GPUs of its node; the validator's image waits for others."""
    return pod(
        spec,
        serviceAccountName=account,
        runtimeClassName=runtime_class(context),
        imagePullSecrets=pods.pull_secrets(spec, context.inventory.specs.validator),
        **fields,
    )


def pod(spec: OperandSpec, **fields: Any) -> dict[str, Any]:
    """Return a pod spec of fields in Kubernetes' spelling, with those that settings of the component turn on."""
    built: dict[str, Any] = compact({**fields, **pod_fields(spec)})
    return built
