"""The container toolkit: teaches each node's container runtime about GPUs."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.objects import config_map, rule
from gpu_provision.components.toolkit_runtimes import (
    CONTAINERD,
    CRIO,
    RUNTIMES,
    Runtime,
    additional_runtimes,
    knows_cdi,
    main_runtime,
    runtime_of,
)
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, RenderContext, Target
from gpu_provision.model.findings import Finding
from gpu_provision.model.specs import SecretKey, ToolkitSpec

NAME = "toolkit"
TITLE = "NVIDIA container toolkit"
REQUIRES: tuple[str, ...] = ("driver",)

_ACCOUNT = "nvidia-container-toolkit"
_APP = "nvidia-container-toolkit-daemonset"
_ENTRYPOINT = "nvidia-container-toolkit-entrypoint"
_ENTRYPOINT_FILES = {"entrypoint.sh": pods.script("wait-for-driver", "toolkit")}

# Where the container sees the runtime's directories.
_CONFIG_DIRECTORY = "/runtime/config-dir/"
_DROP_IN_DIRECTORY = "/runtime/config-dir.d/"
_SOCKET_DIRECTORY = "/runtime/sock-dir/"

_DEFAULT_HANDLER = "nvidia"  # the toolkit's own

_LIST_DAEMON_SETS = rule("apps", ["daemonsets"], ["list"])


def manifests(spec: ToolkitSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights, the entrypoint, and a DaemonSet per container runtime of the targets."""
    runtimes = (main_runtime(context.targets), *additional_runtimes(context.targets))
    return [
        *operands.access(_ACCOUNT, context.namespace, _LIST_DAEMON_SETS),
        config_map(_ENTRYPOINT, context.namespace, _ENTRYPOINT_FILES, {labels.APP: _APP}),
        *(_daemon_set(spec, RUNTIMES[name], context) for name in runtimes),
    ]


def problems(_spec: ToolkitSpec, context: RenderContext) -> tuple[Finding, ...]:
    """Return which nodes cannot get GPUs in the way that the inventory chooses, by CDI or without it.

    By CDI, containers of a runtime that is too old would never see the GPUs that are granted to them.
    """
    if not context.inventory.specs.cdi_enabled:
        return _clash(context.targets)
    nodes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for target in context.targets:
        if target.facts and not knows_cdi(target):
            nodes[runtime_of(target), target.facts.container_runtime_version].append(target.name)
    return tuple(_no_cdi(RUNTIMES[name], version, nodes[name, version]) for name, version in sorted(nodes))


def _no_cdi(runtime: Runtime, version: str, nodes: Sequence[str]) -> Finding:
    since = ".".join(map(str, runtime.cdi_since))
    return Finding(
        code=codes.RUNTIME_WITHOUT_CDI,
        what=f"{runtime.name} {version} cannot give GPUs to containers by CDI",
        where=f"{'Node' if len(nodes) == 1 else 'Nodes'} {', '.join(nodes)}",
        evidence=f"CDI is on (cdi.enabled), and {runtime.name} knows it since {since}",
        fix=f"set cdi.enabled: false, or upgrade {runtime.name} to {since} or newer",
    )


def _clash(targets: Sequence[Target]) -> tuple[Finding, ...]:
    """Return the clash of runtimes that no runtime class bridges: CRI-O's hook has none, the others need one."""
    on_crio = [target.name for target in targets if runtime_of(target) == CRIO]
    if not on_crio or not additional_runtimes(targets):
        return ()
    return (
        Finding(
            code=codes.HOOK_RUNTIME,
            what="without CDI, operands cannot get GPUs on CRI-O nodes and on others at once",
            where=f"Nodes {', '.join(on_crio)}",
            evidence="these run CRI-O; other GPU nodes of the inventory do not",
            fix="set cdi.enabled: true",
        ),
    )


def _daemon_set(spec: ToolkitSpec, runtime: Runtime, context: RenderContext) -> Manifest:
    """Return the DaemonSet for one runtime; which nodes it runs on matters only in a fleet that mixes them."""
    is_main = runtime.name == main_runtime(context.targets)
    by_runtime = {labels.CONTAINER_RUNTIME: runtime.name}
    return operands.daemon_set(
        context,
        _APP if is_main else f"{_APP}-{runtime.name}",
        # The main one keeps its selector, which cannot change, when another runtime joins the fleet.
        selector={labels.APP: _APP} | ({} if is_main else by_runtime),
        switch="container-toolkit",
        node_labels=by_runtime if additional_runtimes(context.targets) else {},
        pod_annotations=operands.configured_by(_ENTRYPOINT_FILES),
        pod=_pod(spec, runtime, context),
    )


def _pod(spec: ToolkitSpec, runtime: Runtime, context: RenderContext) -> dict[str, Any]:
    hooks = "/usr/share/containers/oci/hooks.d" if runtime.name == CRIO else "/run/containers/oci/hooks.d"
    files = _runtime_files(spec, runtime)
    return operands.pod(
        spec,
        serviceAccountName=_ACCOUNT,
        hostPID=True,
        imagePullSecrets=pods.pull_secrets(spec, context.inventory.specs.validator),
        initContainers=[operands.driver_validation(context, own=True)],
        containers=[_container(spec, runtime, context)],
        volumes=[
            pods.config_volume(_ENTRYPOINT, mode=0o700),
            pods.host_volume("toolkit-root", "/run/nvidia/toolkit", "DirectoryOrCreate"),
            operands.RUN_NVIDIA_VALIDATIONS,
            operands.OWN_VALIDATION,
            operands.DRIVER_INSTALL_DIR,
            operands.HOST_ROOT,
            pods.host_volume("toolkit-install-dir", spec.install_dir),
            pods.host_volume("crio-hooks", hooks),
            operands.HOST_DEV_CHAR,
            operands.CDI_ROOT,
            *(pods.host_volume(name, posixpath.dirname(path), kind) for name, path, _, kind in files),
        ],
    )


def _container(spec: ToolkitSpec, runtime: Runtime, context: RenderContext) -> dict[str, Any]:
    files = _runtime_files(spec, runtime)
    return operands.container(
        spec,
        "nvidia-container-toolkit-ctr",
        command=["/bin/entrypoint.sh"],
        env=_environment(spec, runtime, context),
        users=_other_settings(spec, runtime),
        security=pods.PRIVILEGED_S0,
        mounts=[
            pods.mount(_ENTRYPOINT, "/bin/entrypoint.sh", read_only=True, sub_path="entrypoint.sh"),
            pods.mount("toolkit-root", "/run/nvidia/toolkit"),
            operands.MOUNT_OWN_VALIDATION,
            pods.mount("toolkit-install-dir", spec.install_dir),
            pods.mount("crio-hooks", "/usr/share/containers/oci/hooks.d"),
            pods.mount("driver-install-dir", "/driver-root", pods.TO_CONTAINER),
            operands.MOUNT_HOST_ROOT,
            pods.mount("cdi-root", "/var/run/cdi"),
            *(pods.mount(name, directory) for name, _, directory, _ in files),
        ],
    )


def _environment(spec: ToolkitSpec, runtime: Runtime, context: RenderContext) -> dict[str, str | pods.Field]:
    specs = context.inventory.specs
    return {
        "ROOT": spec.install_dir,
        "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "management.nvidia.com/gpu",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
        "NRI_NAMESPACE": pods.Field("metadata.namespace"),
        **_injection(runtime, cdi=specs.cdi_enabled),
        "RUNTIME": runtime.toolkit_name,
        **_handler(runtime, specs.runtime_class),
        **({"RUNTIME_EXECUTABLE_PATH": runtime.executable} if runtime.executable else {}),
        **_paths_in_container(spec, runtime),
    }


def _handler(runtime: Runtime, runtime_class: str) -> dict[str, str]:
    """Name the handler of the runtime class. The reference does so for containerd alone; others have ``nvidia``."""
    if runtime.toolkit_name == CONTAINERD:
        return {"CONTAINERD_RUNTIME_CLASS": runtime_class}
    return {} if runtime_class == _DEFAULT_HANDLER else {"NVIDIA_RUNTIME_NAME": runtime_class}


def _injection(runtime: Runtime, *, cdi: bool) -> dict[str, str]:
    """How GPUs get into containers: through CDI, CRI-O's hook, or the nvidia runtime itself."""
    if cdi:
        return {
            "CDI_ENABLED": "true",
            # Workloads get their GPUs through CDI, so the nvidia runtime is for operands only.
            "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
            "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
            "CRIO_CONFIG_MODE": "config",
        }
    return {"CRIO_CONFIG_MODE": "hook"} if runtime.name == CRIO else {}


def _host_paths(spec: ToolkitSpec, runtime: Runtime) -> tuple[str, str, str]:
    """Return configuration, drop-in and socket on the host: the first of the user's settings, else the default."""
    choices = (
        (runtime.config, runtime.config_env, "RUNTIME_CONFIG"),
        (runtime.drop_in, "RUNTIME_DROP_IN_CONFIG"),
        (runtime.socket, runtime.socket_env, "RUNTIME_SOCKET"),
    )
    config, drop_in, socket = (
        next((spec.settings[name] for name in names if spec.settings.get(name)), default) if default else ""
        for default, *names in choices
    )
    return config, drop_in, socket


def _runtime_files(spec: ToolkitSpec, runtime: Runtime) -> list[tuple[str, str, str, str]]:
    """Return (volume, file on the host, directory in the container, type of the host's directory)."""
    name, create = runtime.toolkit_name, "DirectoryOrCreate"
    config, drop_in, socket = _host_paths(spec, runtime)
    files = [
        (f"{name}-config", config, _CONFIG_DIRECTORY, create),
        (f"{name}-drop-in-config", drop_in, _DROP_IN_DIRECTORY, create),
        (f"{name}-socket", socket, _SOCKET_DIRECTORY, ""),
    ]
    return [file for file in files if file[1]]


def _paths_in_container(spec: ToolkitSpec, runtime: Runtime) -> dict[str, str]:
    config, drop_in, socket = _host_paths(spec, runtime)
    mounted = _CONFIG_DIRECTORY + posixpath.basename(config)
    paths = {"RUNTIME_CONFIG": mounted, runtime.config_env: mounted}
    if drop_in:
        paths["RUNTIME_DROP_IN_CONFIG"] = _DROP_IN_DIRECTORY + posixpath.basename(drop_in)
        paths["RUNTIME_DROP_IN_CONFIG_HOST_PATH"] = drop_in
    if socket:
        mounted = _SOCKET_DIRECTORY + posixpath.basename(socket)
        paths |= {"RUNTIME_SOCKET": mounted, runtime.socket_env: mounted}
    return paths


def _other_settings(spec: ToolkitSpec, runtime: Runtime) -> Mapping[str, str | SecretKey]:
    """Return the user's env without the paths on the host, which have become mounts.

    A file to read the runtime's settings from is also named by its path on the host, which is mounted at /host.
    """
    kept = {name: value for name, value in spec.env.items() if name not in _paths_in_container(spec, runtime)}
    if sources := spec.settings.get("RUNTIME_CONFIG_SOURCE"):
        kept["RUNTIME_CONFIG_SOURCE"] = ",".join(map(_seen_from_container, sources.split(",")))
    return kept


def _seen_from_container(source: str) -> str:
    kind, _, path = source.partition("=")
    return f"file={posixpath.join('/host', path.lstrip('/'))}" if kind == "file" and path else source
