"""Optional inputs of the driver container: ConfigMaps, the licence, subscriptions of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpu_provision.components import operands, pods
from gpu_provision.components.targets import dns_label
from gpu_provision.components.toolkit_runtimes import CRIO, runtime_of
from gpu_provision.model.cluster import RenderContext, Target
from gpu_provision.model.driver_specs import DriverSpec

# Directories of package sources and of certificates, by system.
_APT = ("/etc/apt/sources.list.d", "/usr/local/share/ca-certificates")
_YUM = ("/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem")
_ZYPP = ("/etc/zypp/repos.d", "/etc/pki/trust/anchors")
_DIRECTORIES = {"ubuntu": _APT, "debian": _APT, "sles": _ZYPP, "sl-micro": _ZYPP}
_MODULE_PARAMETERS = "/drivers"  # also the directory of the licence

_TOPOLOGY, _TOPOLOGY_FILE = "topology-config", "nvidia-topologyd.conf"
_LICENSING = "licensing-config"
NLS_KEY = "client_configuration_token.tok"
"""Key of the token of the NVIDIA License System in the Secret of a licence."""

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

_READS_HOST_MODULES = frozenset({"sles", "sl-micro"})  # systems whose precompiled drivers need /lib/modules of the host

_SUBSCRIPTIONS = {"rhel": _REDHAT, "sles": _SUSE, "sl-micro": _SUSE}


class Inputs(NamedTuple):
    """Optional inputs of the driver container."""

    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]  # of the driver container
    sources: list[dict[str, Any]]  # those of package sources and certificates
    parameters: list[dict[str, Any]]  # those of parameters of the kernel modules


def licence_files(spec: DriverSpec) -> Mapping[str, str]:
    """Return where the driver expects each key of the Secret of a licence."""
    token = {NLS_KEY: f"{_MODULE_PARAMETERS}/ClientConfigToken/{NLS_KEY}"} if spec.licensing_nls_enabled else {}
    return {"gridd.conf": f"{_MODULE_PARAMETERS}/gridd.conf", **token}


def inputs_of(target: Target, context: RenderContext) -> Inputs:
    """Return the optional inputs of the driver container of a target's group.

    Each key of a ConfigMap becomes a file in a directory of the image. If the keys are unknown, the whole directory is
    mounted, and the ConfigMap has to be complete.
    """
    spec, system = target.pool.driver, target.os.id if target.os else ""
    volumes = list[dict[str, Any]]()
    repos, certificates = _DIRECTORIES.get(system, _YUM)
    configs = {repos: spec.repo_config, certificates: spec.cert_config, _MODULE_PARAMETERS: spec.kernel_module_config}
    if spec.use_precompiled:  # downloads no packages
        configs |= {repos: "", certificates: ""}
    files: dict[str, list[dict[str, Any]]] = {directory: [] for directory in configs}
    for directory, source in ((path, name) for path, name in configs.items() if name):
        name = dns_label(source).replace(".", "-")  # names of volumes are stricter than those of ConfigMaps
        volume = pods.config_volume(name, source)
        volumes += [volume] if volume not in volumes else []  # one ConfigMap may serve two purposes
        keys = sorted(operands.config_files(context, source))
        each_key = [pods.mount(name, f"{directory}/{key}", read_only=True, sub_path=key) for key in keys]
        files[directory] = each_key or [pods.mount(name, directory, read_only=True)]
    mounts = [mount for found in files.values() for mount in found]
    if spec.licensing_config:
        files_of_licence = licence_files(spec)
        items = [{"key": key, "path": key} for key in files_of_licence]
        volumes.append({"name": _LICENSING, "secret": {"secretName": spec.licensing_config, "items": items}})
        mounts += (pods.mount(_LICENSING, path, read_only=True, sub_path=key) for key, path in files_of_licence.items())
    if spec.virtual_topology.config:
        file = (_TOPOLOGY_FILE, _TOPOLOGY_FILE)
        volumes.append(pods.config_volume(_TOPOLOGY, spec.virtual_topology.config, items=[file]))
        mounts.append(pods.mount(_TOPOLOGY, f"/etc/nvidia/{_TOPOLOGY_FILE}", read_only=True, sub_path=_TOPOLOGY_FILE))
    # CRI-O mounts Red Hat's subscriptions itself; repo_config makes them unnecessary.
    group = (each for each in context.targets if each.driver_group == target.driver_group)
    on_crio = any(runtime_of(each) == CRIO for each in group)
    is_needless = spec.use_precompiled or (system == "rhel" and (spec.repo_config or on_crio))
    for number, (path, host, kind) in enumerate(() if is_needless else _SUBSCRIPTIONS.get(system, ())):
        name = f"subscription-config-{number}"
        volumes.append(pods.host_volume(name, host, kind))
        mounts.append(pods.mount(name, path, read_only=True))
    if spec.use_precompiled and system in _READS_HOST_MODULES:
        volumes.append(pods.host_volume("lib-modules", "/lib/modules", "Directory"))
        mounts.append(pods.mount("lib-modules", "/run/host/lib/modules", read_only=True))
    return Inputs(volumes, mounts, [*files[repos], *files[certificates]], files[_MODULE_PARAMETERS])
