"""The driver: one DaemonSet per driver group, which builds and loads the kernel modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from gpu_provision.components import driver_inputs, driver_side_cars, driver_toolkit, labels, openshift, operands, pods
from gpu_provision.components.objects import config_map, digest, rule
from gpu_provision.components.targets import observed_kernel
from gpu_provision.model.cluster import Manifest, RenderContext, Target
from gpu_provision.model.driver_specs import DriverSpec, StartupProbe
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.settings import camel_case, settings_of
from gpu_provision.model.specs import Specs
from gpu_provision.model.text import MAX_NODES, join_limited, names_by, nodes_at

NAME = "driver"
TITLE = "NVIDIA driver"
REQUIRES: tuple[str, ...] = ("machine_config", "node_labels")
_ACCOUNT = "nvidia-driver"
_APP = "nvidia-driver-daemonset"
_PROBE = "nvidia-driver-startup-probe"
_PRECOMPILED = "nvidia.com/precompiled"
_PRECOMPILED_KERNEL = "nvidia.com/precompiled.kernel-version"

# Operating systems with a driver image of NVIDIA; others need an image of the user, or drivers on the host.
_WITH_IMAGES = frozenset({"ubuntu", "rhel", "rhcos", "rocky", "ol", "sles", "sl-micro", "flatcar", "centos"})

_OFED = "mlnx-ofed-usr-src"  # sources of the network driver, by which the driver builds nvidia-peermem
_HOST_OFED = pods.host_volume(_OFED, "/usr/src", "DirectoryOrCreate")

_VOLUMES = [
    pods.host_volume("run-nvidia", "/run/nvidia", "DirectoryOrCreate"),
    pods.host_volume("var-log", "/var/log"),
    pods.host_volume("dev-log", "/dev/log"),
    pods.host_volume("host-os-release", "/etc/os-release"),
    pods.host_volume("run-nvidia-fabricmanager", "/run/nvidia-fabricmanager", "DirectoryOrCreate"),
    pods.host_volume("run-nvidia-topologyd", "/run/nvidia-topologyd", "DirectoryOrCreate"),
    pods.host_volume(_OFED, "/run/mellanox/drivers/usr/src", "DirectoryOrCreate"),
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
    pods.mount(_OFED, "/run/mellanox/drivers/usr/src", pods.TO_CONTAINER),
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
        *openshift.trusted_ca(context),
        # A change of the probe restarts no driver: a pod keeps its first probe.
        *(_daemon_set(group, next(members), context) for group, members in groupby(served, group_of)),
    ]


def problems(_spec: DriverSpec, context: RenderContext) -> tuple[Finding, ...]:
    """Return the targets that no driver DaemonSet can serve."""
    served = [target for target in context.targets if not target.driver.on_host]
    checks = (_without_kernel, _without_network_card, _without_licence)
    own = (finding for check in checks for finding in check(served, context))
    return (*_of_unknown_system(served, context), *_without_image(served), *own)


def _of_unknown_system(served: Iterable[Target], context: RenderContext) -> Iterator[Finding]:
    on_openshift, is_online = context.openshift is not None, bool(context.facts.version)
    with_cluster = "" if is_online or not on_openshift else "run the command with access to the cluster, or "
    for pool, names in names_by((target.pool.name, target.name) for target in served if target.os is None):
        nodes, is_one = join_limited(names, MAX_NODES), len(names) == 1
        yield Finding(
            code="GP401",
            what=f"the operating system of {nodes} is not known, so {'it gets' if is_one else 'they get'} no driver",
            where=nodes_at(names, MAX_NODES),
            evidence="no cluster was read"
            if with_cluster
            else "neither Node Feature Discovery nor the Node object names it",
            fix=f"{with_cluster}set pools.{pool}.os, for example to {'rhcos4.18' if on_openshift else 'ubuntu22.04'}",
            # Pools of OpenShift have no system: each node reports its own.
            severity=Severity.WARNING if with_cluster else Severity.ERROR,
        )


def _without_image(served: Iterable[Target]) -> Iterator[Finding]:
    lacking = {target.name: target for target in served if target.os and target.os.id not in _WITH_IMAGES}
    kinds = (((target.pool.name, image_of(target)), name) for name, target in lacking.items())
    for (pool, image), names in names_by(kinds):
        target, run = lacking[names[0]], "runs" if len(names) == 1 else "run"
        system = target.os.tag if target.os else ""
        yield Finding(
            code="GP402",
            what=f"{join_limited(names, MAX_NODES)} {run} {system}, for which NVIDIA publishes no driver image",
            where=nodes_at(names, MAX_NODES),
            evidence=f"the image would be {image}",
            fix=f"install the driver on the host and set pools.{pool}.driver.enabled: "
            f"{'auto' if target.pool.driver.prefer_host else 'false'}",
            severity=Severity.WARNING,  # the user may have built an image under that tag
        )


def _without_licence(served: Iterable[Target], context: RenderContext) -> Iterator[Finding]:
    """Yield licence Secrets without a file that the driver's pod mounts: the kubelet would not start the pod."""
    drivers = [target.pool.driver for target in served]
    for spec in {(each.licensing_config, each.licensing_nls_enabled): each for each in drivers}.values():
        keys = context.facts.secret_keys.get(spec.licensing_config)
        lacking = [key for key in driver_inputs.licence_files(spec) if keys is not None and key not in keys]
        if lacking:
            otherwise = "; of a licence without one, set driver.licensing_nls_enabled: false"
            yield Finding(
                code="GP423",
                what=f"the licence has no {' and no '.join(lacking)}",
                where=f"Secret {context.namespace}/{spec.licensing_config}",
                evidence=f"its keys: {', '.join(sorted(keys or ())) or 'none'}",
                consequence="the driver's pods would wait for the file and never start",
                fix=f"add the file to the Secret{otherwise if lacking == [driver_inputs.NLS_KEY] else ''}",
            )


def _without_kernel(served: Iterable[Target], context: RenderContext) -> Iterator[Finding]:
    """Yield nodes whose kernel is not known, so that they get no precompiled driver; offline, it never is.

    Another finding is about nodes that are not in the cluster.
    """
    is_online = bool(context.facts.version)
    evidence = "neither Node Feature Discovery nor the Node object names it" if is_online else "no cluster was read"
    waiting = (each for each in served if each.pool.driver.use_precompiled and not observed_kernel(each.facts))
    names = [target.name for target in waiting if target.facts or not is_online]
    if names:
        nodes = join_limited(names, MAX_NODES)
        yield Finding(
            code="GP420",
            what=f"the kernel of {nodes} is not known, so there is no precompiled driver for it",
            where=nodes_at(names, MAX_NODES),
            evidence=evidence,
            fix="wait until the node is Ready" if is_online else "run the command with access to the cluster",
            severity=Severity.ERROR if is_online else Severity.WARNING,
        )


def _without_network_card(served: Iterable[Target], context: RenderContext) -> Iterator[Finding]:
    """Yield nodes on which nvidia-peermem would wait for the driver of a card that they lack.

    Another Node Feature Discovery may be configured not to report network cards.
    """
    asking = [each for each in served if each.facts and each.pool.driver.rdma.enabled]
    lacking = (
        (target.pool.name, target.name)
        for target in asking
        if labels.has_gpu(target.labels) and not labels.has_mellanox_card(target.labels)
    )
    for pool, names in names_by(lacking):
        nodes = join_limited(names, MAX_NODES)
        yield Finding(
            code="GP421",
            what=f"driver.rdma is on for {nodes} without a network card of NVIDIA (Mellanox)",
            where=nodes_at(names, MAX_NODES),
            evidence="Node Feature Discovery labels no PCI device of vendor 15b3",
            consequence="nvidia-peermem waits for the driver of such a card, and the node never becomes ready",
            fix=f"set pools.{pool}.driver.rdma.enabled: false, or put nodes without a card into a pool of their own",
            severity=Severity.ERROR if context.inventory.specs.nfd.enabled else Severity.WARNING,
        )


def image_of(target: Target) -> str:
    """Return the driver image of a node; empty without a driver container. A digest takes no suffix."""
    spec = target.pool.driver
    kernel = observed_kernel(target.facts) if spec.use_precompiled else ""
    return driver_side_cars.tagged_image(spec.image, target, kernel) if target.driver_group else ""


def images_of(target: Target, specs: Specs) -> dict[str, str]:
    """Return the images of a node's driver pod by the section that chooses each; empty without a driver container."""
    if not target.driver_group:
        return {}
    of_pool, spec = f"pools.{target.pool.name}", target.pool.driver
    key, builders = f"{of_pool}.driver", target.pool.module_builders
    sections = {name: name if each == getattr(specs, name) else f"{of_pool}.{name}" for name, each in builders.items()}
    beside = {sections[name]: driver_side_cars.tagged_image(each.image, target) for name, each in builders.items()}
    return {key: image_of(target), f"{key}.manager": spec.manager.image.reference, **beside}


def _daemon_set(group: str, target: Target, context: RenderContext) -> Manifest:
    """Return the DaemonSet of a group, all of whose nodes have the needs of ``target``."""
    spec, by_group = target.pool.driver, {labels.DRIVER_GROUP: group}
    kernel = observed_kernel(target.facts) if spec.use_precompiled else ""
    of_kernel = {_PRECOMPILED_KERNEL: _sanitize_kernel(kernel)} if kernel else {}
    marks = {_PRECOMPILED: "true" if kernel else "false", **of_kernel, labels.COMPONENT_OF_APP: "nvidia-driver"}
    marks |= driver_toolkit.pod_labels(target)
    return operands.daemon_set(
        context,
        f"{_APP}-{group}",
        # The GPU Operator's label alone would select the pods of every group.
        selector={labels.APP: _APP, **by_group},
        extra_labels=marks,
        pod_labels=spec.labels,
        pod_annotations={**spec.annotations, "kubectl.kubernetes.io/default-container": "nvidia-driver-ctr"},
        tolerations=spec.tolerations,
        priority_class_name=spec.priority_class_name,
        switch="driver",
        node_labels={
            **by_group,
            **({labels.NFD_KERNEL: kernel} if kernel else {}),
            **driver_toolkit.node_labels(target),
        },
        pod=_pod(target, context),
        on_delete=True,
    )


def _sanitize_kernel(kernel: str) -> str:
    """Return a kernel without its architecture, as the GPU Operator labels it."""
    return re.sub(r"(x86_64|aarch64)(_64k)?", "", kernel).replace("_", ".").removesuffix(".").lower()


def _pod(target: Target, context: RenderContext) -> dict[str, Any]:
    spec, image, inputs = target.pool.driver, image_of(target), driver_inputs.inputs_of(target, context)
    has_ofed = spec.rdma.enabled and spec.rdma.use_host_mofed
    volumes = [_HOST_OFED if has_ofed and each["name"] == _OFED else each for each in _VOLUMES]
    of_cluster = openshift.settings_of(target, context)
    volumes += [*inputs.volumes, *of_cluster.volumes]
    manager, driver = _manager(spec), _driver(target, image, inputs.mounts, of_cluster)
    parts = {"parameters": inputs.parameters, "sources": inputs.sources}
    missing = driver_toolkit.missing_environment(target)
    side_cars = [*driver_side_cars.containers(target, image, **parts, variables=missing)]
    builders = [manager, driver]
    if target.toolkit_release:
        volumes.append(driver_toolkit.VOLUME)
        side_cars.append(toolkit := driver_toolkit.container(target, image))
        builders.append(toolkit)
    # All skip the installation if this digest is installed already: a restart then stops no workload.
    fields = ("image", "command", "args", "env", "volumeMounts")
    containers = [[container.get(field) for field in fields] for container in (manager, driver, *side_cars)]
    # A change of the files that the driver reads installs it again, too.
    topology = [spec.virtual_topology.config] if spec.virtual_topology.config else []
    names = (spec.repo_config, spec.cert_config, spec.kernel_module_config, *topology)
    files: list[Any] = [dict(operands.config_files(context, name)) for name in names]
    files += filter(None, [context.facts.secrets.get(spec.licensing_config), spec.secret_env])
    root = context.inventory.specs.host_paths.root_fs
    relevant = [*containers, volumes, files, *([root] if root != "/" else [])]
    settings = {"DRIVER_CONFIG_DIGEST": digest(relevant, 32)}
    for container in builders:
        container["env"] += pods.environment(settings)
    # Where NVIDIA's runtime is the default one, its hook would look for the driver that this container brings. It came
    # after the digest, so that no driver was installed again for it.
    driver["env"] += [] if "NVIDIA_VISIBLE_DEVICES" in spec.env else pods.environment(driver_side_cars.VOID)
    return operands.pod(
        spec,
        serviceAccountName=_ACCOUNT,
        hostPID=True,
        affinity=_ONE_PER_HOST,
        imagePullSecrets=pods.pull_secrets(spec, spec.manager, *target.pool.module_builders.values()),
        initContainers=[manager],
        containers=[driver, *side_cars],
        volumes=volumes,
    )


def _manager(spec: DriverSpec) -> dict[str, Any]:
    return pods.container(
        "k8s-driver-manager",
        spec,
        image=spec.manager.image.reference,
        imagePullPolicy=spec.manager.image_pull_policy or spec.image_pull_policy,
        command=["driver-manager"],
        args=["uninstall_driver"],
        env=pods.environment({**_MANAGER_ENVIRONMENT, **driver_side_cars.rdma_environment(spec)}, spec.manager.env),
        securityContext=pods.PRIVILEGED,
        resources=dict(spec.resources),
        volumeMounts=[
            pods.mount("run-nvidia", "/run/nvidia", pods.BOTH_WAYS),
            operands.MOUNT_HOST_ROOT,
            pods.mount("host-sys", "/sys"),
            pods.mount("run-mellanox-drivers", "/run/mellanox/drivers", pods.TO_CONTAINER),
        ],
    )


def _driver(
    target: Target, image: str, inputs: list[dict[str, Any]], of_cluster: openshift.ClusterSettings
) -> dict[str, Any]:
    pool, spec = target.pool, target.pool.driver
    command, args, shared = ["nvidia-driver"], ["init"], list[dict[str, Any]]()
    if target.toolkit_release:
        command, args, shared = [driver_toolkit.ENTRYPOINT], [driver_toolkit.BUILD_DRIVER], [driver_toolkit.MOUNT]
        spec = replace(spec, args=())  # the entrypoint refuses further arguments
    open_modules = {"OPEN_KERNEL_MODULES_ENABLED": "true"} if spec.kernel_module_type == "open" else {}
    declared: pods.Environment = {
        **pods.NODE_NAME,
        "NODE_IP": pods.Field("status.hostIP"),
        "KERNEL_MODULE_TYPE": spec.kernel_module_type,
        **open_modules,
        **driver_side_cars.module_environment(pool),
        **of_cluster.environment,
        **driver_toolkit.missing_environment(target),
    }
    probe = {camel_case(each.name): getattr(spec.startup_probe, each.name) for each in settings_of(StartupProbe)}
    files = [f"{operands.VALIDATIONS}/{name}" for name in (".driver-ctr-ready", ".driver-daemons-status")]
    return operands.container(
        spec,
        "nvidia-driver-ctr",
        image=image,
        command=command,
        args=args,
        env=declared,
        envFrom=driver_side_cars.variables_from(spec.secret_env),
        startupProbe={"exec": {"command": ["sh", "/usr/local/bin/startup-probe.sh"]}, **probe, "successThreshold": 1},
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", f"rm -f {' '.join(files)}"]}}},
        security=pods.PRIVILEGED_S0,
        mounts=[*_MOUNTS, *inputs, *shared, *of_cluster.mounts],
    )
