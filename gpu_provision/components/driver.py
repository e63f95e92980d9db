"""The driver: one DaemonSet per driver group, which builds and loads the kernel modules."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.objects import config_map, digest, rule
from gpu_provision.components.targets import dns_label
from gpu_provision.components.toolkit_runtimes import CRIO, runtime_of
from gpu_provision.model.cluster import Manifest, RenderContext, Target
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.settings import camel_case, settings_of
from gpu_provision.model.specs import DriverSpec, StartupProbe

NAME = "driver"
TITLE = "NVIDIA driver"
REQUIRES: tuple[str, ...] = ("node_labels",)
_ACCOUNT = "nvidia-driver"
_APP = "nvidia-driver-daemonset"
_PROBE = "nvidia-driver-startup-probe"
_EXTRA_LABELS = {"nvidia.com/precompiled": "false", labels.COMPONENT_OF_APP: "nvidia-driver"}

# Operating systems with a driver image of NVIDIA; others need an image of the user, or drivers on the host.
_WITH_IMAGES = frozenset({"ubuntu", "rhel", "rhcos", "rocky", "ol", "sles", "sl-micro", "flatcar", "centos"})

_VOLUMES = [
    pods.host_volume("run-nvidia", "/run/nvidia", "DirectoryOrCreate"),
    pods.host_volume("var-log", "/var/log"),
    pods.host_volume("dev-log", "/dev/log"),
    pods.host_volume("host-os-release", "/etc/os-release"),
    pods.host_volume("run-nvidia-fabricmanager", "/run/nvidia-fabricmanager", "DirectoryOrCreate"),
    pods.host_volume("run-nvidia-topologyd", "/run/nvidia-topologyd", "DirectoryOrCreate"),
    pods.host_volume("mlnx-ofed-usr-src", "/run/mellanox/drivers/usr/src", "DirectoryOrCreate"),
    pods.host_volume("run-mellanox-drivers", "/run/mellanox/drivers", "DirectoryOrCreate"),
    operands.RUN_NVIDIA_VALIDATIONS,
    operands.HOST_ROOT,
    pods.host_volume("host-sys", "/sys", "Directory"),
    pods.host_volume("firmware-search-path", "/sys/module/firmware_class/parameters/path"),
    pods.host_volume("host-sys-devices-system", "/sys/devices/system", "Directory"),
    pods.host_volume("nv-firmware", "/run/nvidia/driver/lib/firmware", "DirectoryOrCreate"),
    pods.config_volume("driver-startup-probe-script", _PROBE, mode=0o755),
]

_MOUNTS = [
    pods.mount("run-nvidia", "/run/nvidia", pods.BOTH_WAYS),
    pods.mount("run-nvidia-fabricmanager", "/run/nvidia-fabricmanager"),
    pods.mount("run-nvidia-topologyd", "/run/nvidia-topologyd"),
    pods.mount("var-log", "/var/log"),
    pods.mount("dev-log", "/dev/log"),
    pods.mount("host-os-release", "/host-etc/os-release", read_only=True),
    pods.mount("mlnx-ofed-usr-src", "/run/mellanox/drivers/usr/src", pods.TO_CONTAINER),
    pods.mount("run-mellanox-drivers", "/run/mellanox/drivers", pods.TO_CONTAINER),
    pods.mount("host-sys-devices-system", "/sys/devices/system"),
    pods.mount("firmware-search-path", "/sys/module/firmware_class/parameters/path"),
    pods.mount("nv-firmware", "/lib/firmware"),
    pods.mount("driver-startup-probe-script", "/usr/local/bin/startup-probe.sh", sub_path="startup-probe.sh"),
]

# The manager unloads the old driver before a new one is installed. The rollout cordons and evicts: the manager would
# uncordon the node at its end, even after an administrator's cordon.
_MANAGER_ENVIRONMENT: pods.Environment = {
    **pods.NODE_NAME,
    "NVIDIA_VISIBLE_DEVICES": "void",
    "ENABLE_GPU_POD_EVICTION": "false",
    "ENABLE_AUTO_DRAIN": "false",
    "DRAIN_USE_FORCE": "false",
    "DRAIN_POD_SELECTOR_LABEL": "",
    "DRAIN_TIMEOUT_SECONDS": "0s",
    "DRAIN_DELETE_EMPTYDIR_DATA": "false",
    **pods.OPERATOR_NAMESPACE,
}

_DRIVER_PODS = {"matchExpressions": [{"key": labels.COMPONENT_OF_APP, "operator": "In", "values": ["nvidia-driver"]}]}
_ONE_PER_HOST = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": _DRIVER_PODS, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}

_CLUSTER_RULES = [
    rule("config.openshift.io", ["clusterversions"], ["get", "list"]),
    rule("", ["nodes"], ["get", "list", "patch", "update", "watch"]),
    rule("", ["pods"], ["get", "list", "watch"]),
    rule("", ["pods/eviction"], ["create"]),
    rule("resource.k8s.io", ["resourceclaims"], ["get", "list"]),
    rule("apps", ["daemonsets"], ["get"]),
]


def spec(inventory: Inventory) -> DriverSpec | None:
    """Return the driver's spec, or that of a pool if only pools have it on; None if no node gets a driver."""
    pools = sorted((pool for pool in inventory.pools.values() if pool.gpu), key=lambda pool: pool.name)
    candidates = [inventory.specs.driver, *(pool.driver for pool in pools if pool.overrides_driver)]
    return next((candidate for candidate in candidates if candidate.enabled), None)


def manifests(_spec: DriverSpec, context: RenderContext) -> list[Manifest]:
    """Return the startup probe, access rights, and a DaemonSet per driver group."""
    group_of = attrgetter("driver_group")
    served = sorted((target for target in context.targets if target.driver_group), key=group_of)
    return [
        *operands.access(_ACCOUNT, context.namespace, cluster_rules=_CLUSTER_RULES),
        config_map(_PROBE, context.namespace, {"startup-probe.sh": pods.script("startup-probe")}, {labels.APP: _APP}),
        # A change of the probe restarts no driver: a pod keeps its first probe.
        *(_daemon_set(group, next(members), context) for group, members in groupby(served, group_of)),
    ]


def problems(_spec: DriverSpec, context: RenderContext) -> tuple[Finding, ...]:
    """Return the targets that no driver DaemonSet can serve."""
    served = [target for target in context.targets if not target.driver.on_host]
    unknown = [
        Finding(
            code="GP401",
            what=f"the operating system of {target.name} is not known, so it gets no driver",
            where=f"Node {target.name}",
            evidence="neither Node Feature Discovery nor the Node object names it",
            fix=f"set pools.{target.pool.name}.os, for example to ubuntu22.04",
        )
        for target in served
        if target.os is None
    ]
    without_image = [
        Finding(
            code="GP402",
            what=f"{target.name} runs {target.os.tag}, for which NVIDIA publishes no driver image",
            where=f"Node {target.name}",
            evidence=f"the image would be {image_of(target)}",
            fix=f"install the driver on the host and set pools.{target.pool.name}.driver.enabled: "
            f"{'auto' if target.pool.driver.prefer_host else 'false'}",
            severity=Severity.WARNING,  # the user may have built an image under that tag
        )
        for target in served
        if target.os and target.os.id not in _WITH_IMAGES
    ]
    return (*unknown, *without_image)


def image_of(target: Target) -> str:
    """Return the driver image of a node; empty without a driver container. A digest takes no suffix."""
    image = target.pool.driver.image
    if not target.driver_group or target.os is None:
        return ""
    pinned = image.version.startswith("sha256:")
    return image.reference if pinned else image.reference_with_tag(f"{image.version}-{target.os.tag}")


def _daemon_set(group: str, target: Target, context: RenderContext) -> Manifest:
    """Return the DaemonSet of a group, all of whose nodes have the needs of ``target``."""
    by_group = {labels.DRIVER_GROUP: group}
    return operands.daemon_set(
        context,
        f"{_APP}-{group}",
        # The GPU Operator's label alone would select the pods of every group.
        selector={labels.APP: _APP, **by_group},
        extra_labels=_EXTRA_LABELS,
        pod_annotations={"kubectl.kubernetes.io/default-container": "nvidia-driver-ctr"},
        switch="driver",
        node_labels=by_group,
        pod=_pod(target, context),
        on_delete=True,
    )


def _pod(target: Target, context: RenderContext) -> dict[str, Any]:
    spec = target.pool.driver
    inputs, mounts = _inputs(target, context)
    volumes = [*_VOLUMES, *inputs]
    manager, driver = _manager(spec), _driver(spec, image_of(target), mounts)
    # Both skip the installation if this digest is installed already: a restart then stops no workload.
    fields = ("image", "command", "args", "env", "volumeMounts")
    containers = [[container.get(field) for field in fields] for container in (manager, driver)]
    # A change of the files that the driver reads installs it again, too.
    names = (spec.repo_config, spec.cert_config, spec.kernel_module_config)
    files: list[Any] = [dict(operands.config_files(context, name)) for name in names]
    files += filter(None, [context.facts.secrets.get(spec.licensing_config)])
    root = context.inventory.specs.host_paths.root_fs
    relevant = [*containers, volumes, files, *([root] if root != "/" else [])]
    settings = {"DRIVER_CONFIG_DIGEST": digest(relevant, 32)}
    for container in (manager, driver):
        container["env"] += pods.environment(settings)
    return operands.pod(
        spec,
        serviceAccountName=_ACCOUNT,
        hostPID=True,
        affinity=_ONE_PER_HOST,
        imagePullSecrets=pods.pull_secrets(spec),
        initContainers=[manager],
        containers=[driver],
        volumes=volumes,
    )


def _manager(spec: DriverSpec) -> dict[str, Any]:
    return pods.container(
        "k8s-driver-manager",
        spec,
        image=spec.manager.reference,
        command=["driver-manager"],
        args=["uninstall_driver"],
        env=pods.environment(_MANAGER_ENVIRONMENT),
        securityContext=pods.PRIVILEGED,
        resources=dict(spec.resources),
        volumeMounts=[
            pods.mount("run-nvidia", "/run/nvidia", pods.BOTH_WAYS),
            operands.MOUNT_HOST_ROOT,
            pods.mount("host-sys", "/sys"),
            pods.mount("run-mellanox-drivers", "/run/mellanox/drivers", pods.TO_CONTAINER),
        ],
    )


def _driver(spec: DriverSpec, image: str, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    open_modules = {"OPEN_KERNEL_MODULES_ENABLED": "true"} if spec.kernel_module_type == "open" else {}
    declared: pods.Environment = {
        **pods.NODE_NAME,
        "NODE_IP": pods.Field("status.hostIP"),
        "KERNEL_MODULE_TYPE": spec.kernel_module_type,
        **open_modules,
    }
    probe = {camel_case(each.name): getattr(spec.startup_probe, each.name) for each in settings_of(StartupProbe)}
    files = [f"{operands.VALIDATIONS}/{name}" for name in (".driver-ctr-ready", ".driver-daemons-status")]
    return operands.container(
        spec,
        "nvidia-driver-ctr",
        image=image,
        command=["nvidia-driver"],
        args=["init"],
        env=declared,
        startupProbe={"exec": {"command": ["sh", "/usr/local/bin/startup-probe.sh"]}, **probe, "successThreshold": 1},
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", f"rm -f {' '.join(files)}"]}}},
        security=pods.PRIVILEGED_S0,
        mounts=[*_MOUNTS, *inputs],
    )


# Directories of package sources and of certificates, by system.
_APT = ("/etc/apt/sources.list.d", "/usr/local/share/ca-certificates")
_YUM = ("/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem")
_ZYPP = ("/etc/zypp/repos.d", "/etc/pki/trust/anchors")
_DIRECTORIES = {"ubuntu": _APT, "debian": _APT, "sles": _ZYPP, "sl-micro": _ZYPP}
_MODULE_PARAMETERS = "/drivers"

_LICENSING = "licensing-config"
_LICENSE = (("gridd.conf", "/drivers/gridd.conf"),)
_LICENSE_TOKEN = (("client_configuration_token.tok", "/drivers/ClientConfigToken/client_configuration_token.tok"),)

# Files of a subscribed host with which the driver container downloads kernel headers:
# (path in the container, path on the host, what it must be).
_REDHAT = (
    ("/run/secrets/etc-pki-entitlement", "/etc/pki/entitlement", "Directory"),
    ("/run/secrets/redhat.repo", "/etc/yum.repos.d/redhat.repo", "File"),
    ("/run/secrets/rhsm", "/etc/rhsm", "Directory"),
)

_SUSE = (
    ("/etc/SUSEConnect", "/etc/SUSEConnect", "FileOrCreate"),
    ("/etc/zypp/credentials.d", "/etc/zypp/credentials.d", "Directory"),
)

_SUBSCRIPTIONS = {"rhel": _REDHAT, "sles": _SUSE, "sl-micro": _SUSE}


def _inputs(target: Target, context: RenderContext) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes and mounts of the optional inputs of the driver container of a target's group.

    Each key of a ConfigMap becomes a file in a directory of the image. If the keys are unknown, the whole directory is
    mounted, and the ConfigMap has to be complete.
    """
    spec, system = target.pool.driver, target.os.id if target.os else ""
    volumes, mounts = list[dict[str, Any]](), list[dict[str, Any]]()
    repos, certificates = _DIRECTORIES.get(system, _YUM)
    configs = {repos: spec.repo_config, certificates: spec.cert_config, _MODULE_PARAMETERS: spec.kernel_module_config}
    for directory, source in ((path, name) for path, name in configs.items() if name):
        name = dns_label(source).replace(".", "-")  # names of volumes are stricter than those of ConfigMaps
        volume = pods.config_volume(name, source)
        volumes += [volume] if volume not in volumes else []  # one ConfigMap may serve two purposes
        keys = sorted(operands.config_files(context, source))
        files = [pods.mount(name, f"{directory}/{key}", read_only=True, sub_path=key) for key in keys]
        mounts += files or [pods.mount(name, directory, read_only=True)]
    if spec.licensing_config:
        license_files = (*_LICENSE, *(_LICENSE_TOKEN if spec.licensing_nls_enabled else ()))
        items = [{"key": key, "path": key} for key, _ in license_files]
        secret = {"secretName": spec.licensing_config, "items": items}
        volumes.append({"name": _LICENSING, "secret": secret})
        mounts += (pods.mount(_LICENSING, path, read_only=True, sub_path=key) for key, path in license_files)
    # CRI-O mounts Red Hat's subscriptions itself; repo_config makes them unnecessary.
    group = (each for each in context.targets if each.driver_group == target.driver_group)
    on_crio = any(runtime_of(each) == CRIO for each in group)
    is_needless = system == "rhel" and (spec.repo_config or on_crio)
    for number, (path, host, kind) in enumerate(() if is_needless else _SUBSCRIPTIONS.get(system, ())):
        name = f"subscription-config-{number}"
        volumes.append(pods.host_volume(name, host, kind))
        mounts.append(pods.mount(name, path, read_only=True))
    return volumes, mounts
