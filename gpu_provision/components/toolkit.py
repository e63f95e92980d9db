"""The container toolkit: teaches each node's container runtime about GPUs."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.objects import config_map, rule
from gpu_provision.components.toolkit_runtimes import (
    CONTAINERD,
    CRIO,
    RUNTIMES,
    Runtime,
    additional_runtimes,
    main_runtime,
    runtime_of,
    shows_newest_schema,
    supports_cdi,
    supports_nri,
)
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, RenderContext, Target
from gpu_provision.model.findings import Finding
from gpu_provision.model.operand_specs import SecretKey
from gpu_provision.model.specs import ToolkitSpec
from gpu_provision.model.text import nodes_at

NAME = "toolkit"
TITLE = "NVIDIA container toolkit"
REQUIRES: tuple[str, ...] = ("driver",)

_ACCOUNT = "nvidia-container-toolkit"
_APP = "nvidia-container-toolkit-daemonset"
_ENTRYPOINT = "nvidia-container-toolkit-entrypoint"

_DROP_IN = "RUNTIME_DROP_IN_CONFIG"
_DEFAULT_HANDLER = "nvidia"  # the toolkit's own

_LIST_DAEMON_SETS = rule("apps", ["daemonsets"], ["list"])


def manifests(spec: ToolkitSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights, the entrypoint, and a DaemonSet per container runtime of the targets."""
    runtimes = (main_runtime(context.targets), *additional_runtimes(context.targets))
    return [
        *operands.access(_ACCOUNT, context.namespace, _LIST_DAEMON_SETS),
        config_map(_ENTRYPOINT, context.namespace, _entrypoint_files(context), {labels.APP: _APP}),
        *(_daemon_set(spec, RUNTIMES[name], context) for name in runtimes),
    ]


def _entrypoint_files(context: RenderContext) -> dict[str, str]:
    """Return the entrypoint; where a containerd may show a newer schema than its file has, each node compares them."""
    compares = any(map(shows_newest_schema, context.targets)) and not context.inventory.specs.nri_plugin_enabled
    return operands.entrypoint(context, *(["config-source"] if compares else []), "toolkit")


def problems(_spec: ToolkitSpec, context: RenderContext) -> tuple[Finding, ...]:
    """Return findings about nodes whose container runtime does not fit the settings of ``cdi``."""
    if not context.inventory.specs.cdi_enabled:
        return _runtime_conflicts(context.targets)
    too_old = [
        Finding(
            code=codes.RUNTIME_WITHOUT_CDI,
            what=f"{name} {version} cannot give GPUs to containers by CDI",
            where=where,
            evidence=f"CDI is on (cdi.enabled), and {name} supports it since {since}",
            fix=f"set cdi.enabled: false, or upgrade {name} to {since} or newer",
        )
        for name, version, where in _group_by_runtime(each for each in context.targets if not supports_cdi(each))
        for since in [".".join(map(str, RUNTIMES[name].cdi_since))]
    ]
    with_nri = context.targets if context.inventory.specs.nri_plugin_enabled else ()
    without_nri = [
        Finding(
            code="GP409",
            what=f"{name} {version} has no NRI, by which operands are to get their GPUs",
            where=where,
            evidence="cdi.nri_plugin_enabled is on; NRI came with containerd 1.7 and CRI-O 1.26",
            fix="set cdi.nri_plugin_enabled: false, or upgrade the container runtime",
        )
        for name, version, where in _group_by_runtime(each for each in with_nri if not supports_nri(each))
    ]
    return (*too_old, *without_nri)


def _group_by_runtime(targets: Iterable[Target]) -> Iterator[tuple[str, str, str]]:
    """Yield the runtime, its version, and the names of its nodes; nodes of which nothing is known are left out."""
    nodes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for target in targets:
        if target.facts:
            nodes[runtime_of(target), target.facts.container_runtime_version].append(target.name)
    for (name, version), names in sorted(nodes.items()):
        yield name, version, nodes_at(names)


def _runtime_conflicts(targets: Sequence[Target]) -> tuple[Finding, ...]:
    """Return a finding if both CRI-O, whose hook has no runtime class, and runtimes that need one are in use."""
    on_crio = [target.name for target in targets if runtime_of(target) == CRIO]
    finding = Finding(
        code="GP406",
        what="without CDI, operands cannot get GPUs on CRI-O nodes and on others at once",
        where=f"Nodes {', '.join(on_crio)}",
        evidence="these run CRI-O; other GPU nodes of the inventory do not",
        fix="set cdi.enabled: true",
    )
    return (finding,) if on_crio and additional_runtimes(targets) else ()


def _daemon_set(spec: ToolkitSpec, runtime: Runtime, context: RenderContext) -> Manifest:
    """Return the DaemonSet for one runtime; node labels select its nodes only in a fleet with several runtimes."""
    is_main = runtime.name == main_runtime(context.targets)
    by_runtime = {labels.CONTAINER_RUNTIME: runtime.name}
    return operands.daemon_set(
        context,
        _APP if is_main else f"{_APP}-{runtime.name}",
        # The selector is immutable: the main one keeps its own when another runtime joins the fleet.
        selector={labels.APP: _APP} | ({} if is_main else by_runtime),
        switch="container-toolkit",
        node_labels=by_runtime if additional_runtimes(context.targets) else {},
        pod_annotations=operands.config_annotation(_entrypoint_files(context)),
        pod=_pod(spec, runtime, context),
    )


def _pod(spec: ToolkitSpec, runtime: Runtime, context: RenderContext) -> dict[str, Any]:
    # The directories of CoreOS in /usr cannot be written to.
    in_usr = runtime.name == CRIO and context.openshift is None
    hooks = "/usr/share/containers/oci/hooks.d" if in_usr else "/run/containers/oci/hooks.d"
    files = _host_files(spec, runtime, context)
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
            *(pods.host_volume(file.volume, posixpath.dirname(file.host), file.kind) for file in files),
        ],
    )


def _container(spec: ToolkitSpec, runtime: Runtime, context: RenderContext) -> dict[str, Any]:
    files = _host_files(spec, runtime, context)
    return operands.container(
        spec,
        "nvidia-container-toolkit-ctr",
        command=["/bin/entrypoint.sh"],
        env=_environment(spec, runtime, context),
        users=_other_settings(spec, files),
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
            *(pods.mount(file.volume, file.directory) for file in files),
        ],
    )


def _environment(spec: ToolkitSpec, runtime: Runtime, context: RenderContext) -> dict[str, str | pods.Field]:
    specs = context.inventory.specs
    files = _host_files(spec, runtime, context)
    # The handler of the runtime class. The GPU Operator sets it for containerd only; others have ``nvidia``.
    handler = {} if specs.runtime_class == _DEFAULT_HANDLER else {"NVIDIA_RUNTIME_NAME": specs.runtime_class}
    if runtime.toolkit_name == CONTAINERD:
        handler = {"CONTAINERD_RUNTIME_CLASS": specs.runtime_class}
    return {
        "ROOT": spec.install_dir,
        "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "management.nvidia.com/gpu",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
        "NRI_NAMESPACE": pods.Field("metadata.namespace"),
        **_injection(runtime, cdi=specs.cdi_enabled),
        "RUNTIME": runtime.toolkit_name,
        **({"ENABLE_NRI_PLUGIN": "true"} if specs.nri_plugin_enabled else handler),
        **({"RUNTIME_EXECUTABLE_PATH": runtime.executable} if runtime.executable else {}),
        **_paths_in_container(files),
    }


def _injection(runtime: Runtime, *, cdi: bool) -> dict[str, str]:
    """Return the settings for injecting GPUs: through CDI, CRI-O's hook, or the nvidia runtime itself."""
    if cdi:
        return {
            "CDI_ENABLED": "true",
            # Workloads use CDI, so only operands need the nvidia runtime.
            "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
            "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
            "CRIO_CONFIG_MODE": "config",
        }
    return {"CRIO_CONFIG_MODE": "hook"} if runtime.name == CRIO else {}


class _File(NamedTuple):
    """A file of a runtime, and the settings by which users name another one than the default."""

    volume: str
    host: str  # its path on the host
    directory: str  # mount path of its directory
    kind: str  # type of the directory on the host
    settings: tuple[str, ...]


_NRI_SOCKET = "NRI_SOCKET"


def _host_files(spec: ToolkitSpec, runtime: Runtime, context: RenderContext) -> list[_File]:
    """Return the files that the toolkit uses: those of the runtime, or the socket of its NRI plugin alone."""
    if not context.inventory.specs.nri_plugin_enabled:
        return _runtime_files(spec, runtime)
    socket = spec.settings.get(_NRI_SOCKET) or "/var/run/nri/nri.sock"
    return [_File("nri-socket", socket, "/runtime/nri-sock-dir/", "DirectoryOrCreate", (_NRI_SOCKET,))]


def _runtime_files(spec: ToolkitSpec, runtime: Runtime) -> list[_File]:
    name, create = runtime.toolkit_name, "DirectoryOrCreate"
    files = (
        _File(f"{name}-config", runtime.config, "/runtime/config-dir/", create, (runtime.config_env, "RUNTIME_CONFIG")),
        _File(f"{name}-drop-in-config", runtime.drop_in, "/runtime/config-dir.d/", create, (_DROP_IN,)),
        _File(f"{name}-socket", runtime.socket, "/runtime/sock-dir/", "", (runtime.socket_env, "RUNTIME_SOCKET")),
    )
    chosen = [next(filter(None, map(spec.settings.get, file.settings)), file.host) for file in files]
    return [file._replace(host=host) for file, host in zip(files, chosen, strict=True) if file.host]


def _paths_in_container(files: Sequence[_File]) -> dict[str, str]:
    paths: dict[str, str] = {}
    for file in files:
        paths |= dict.fromkeys(reversed(file.settings), file.directory + posixpath.basename(file.host))
        if _DROP_IN in file.settings:
            paths[f"{_DROP_IN}_HOST_PATH"] = file.host
    return paths


def _other_settings(spec: ToolkitSpec, files: Sequence[_File]) -> Mapping[str, str | SecretKey]:
    """Return the user's env without the paths on the host, which have become mounts.

    A file in RUNTIME_CONFIG_SOURCE is a path on the host, which is mounted at /host.
    """
    variables = {name: value for name, value in spec.env.items() if name not in _paths_in_container(files)}
    if sources := spec.settings.get("RUNTIME_CONFIG_SOURCE"):
        pairs = ((source, *source.partition("=")[::2]) for source in sources.split(","))
        variables["RUNTIME_CONFIG_SOURCE"] = ",".join(
            f"file=/host/{path.lstrip('/')}" if kind == "file" and path else source for source, kind, path in pairs
        )
    return variables
