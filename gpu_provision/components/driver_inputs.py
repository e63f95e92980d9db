"""What a user hands to the driver container: repositories, certificates, module parameters, a licence."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpu_provision.components import operands, pods
from gpu_provision.components.targets import dns_label
from gpu_provision.components.toolkit_runtimes import CRIO, runtime_of
from gpu_provision.model.cluster import Context
from gpu_provision.model.inventory import OperatingSystem
from gpu_provision.model.specs import DriverSpec


class Inputs(NamedTuple):
    """Volumes of the pod, and where the driver container mounts them."""

    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]


_APT = {"repo": "/etc/apt/sources.list.d", "certs": "/usr/local/share/ca-certificates"}
_YUM = {"repo": "/etc/yum.repos.d", "certs": "/etc/pki/ca-trust/extracted/pem"}
_ZYPP = {"repo": "/etc/zypp/repos.d", "certs": "/etc/pki/trust/anchors"}
_DIRECTORIES = {"ubuntu": _APT, "debian": _APT, "sles": _ZYPP, "sl-micro": _ZYPP}
_MODULE_PARAMETERS = "/drivers"

# A licence is always made of these two files.
_LICENSE = (
    ("gridd.conf", "/drivers/gridd.conf"),
    ("client_configuration_token.tok", "/drivers/ClientConfigToken/client_configuration_token.tok"),
)

# What a subscribed host lends to the driver container, so that it may download kernel headers:
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


def inputs(spec: DriverSpec, os: OperatingSystem | None, context: Context) -> Inputs:
    """Return volumes and mounts of the optional inputs of a driver container for ``os``."""
    system = os.id if os else ""
    directories = _DIRECTORIES.get(system, _YUM)
    parts = [
        _files(spec.repo_config, directories["repo"], context),
        _files(spec.cert_config, directories["certs"], context),
        _files(spec.kernel_module_config, _MODULE_PARAMETERS, context),
        _license(spec.licensing_config),
        _subscription(spec, system, context),
    ]
    volumes = [volume for part in parts for volume in part.volumes]
    return Inputs(
        # One ConfigMap may serve two purposes; a volume's name must be unique.
        [volume for index, volume in enumerate(volumes) if volume not in volumes[:index]],
        [mount for part in parts for mount in part.mounts],
    )


def contents(spec: DriverSpec, context: Context) -> list[Any]:
    """Return what is known of the files: the driver is installed anew when one of them changes."""
    names = (spec.repo_config, spec.cert_config, spec.kernel_module_config)
    files = [dict(operands.config_of(context, name)) for name in names]
    license_digest = context.facts.secrets.get(spec.licensing_config, "")
    return [*files, license_digest] if license_digest else files


def _files(config_map: str, directory: str, context: Context) -> Inputs:
    """Mount each key as a file, beside what the image has in ``directory``.

    Where the keys are not known the whole directory is mounted: the ConfigMap then has to be complete.
    """
    if not config_map:
        return Inputs([], [])
    name = dns_label(config_map).replace(".", "-")  # names of volumes are stricter than those of ConfigMaps
    keys = sorted(operands.config_of(context, config_map))
    mounts = [pods.mount(name, f"{directory}/{key}", read_only=True, sub_path=key) for key in keys]
    whole = [pods.mount(name, directory, read_only=True)]
    return Inputs([pods.config_volume(name, config_map)], mounts or whole)


def _license(secret: str) -> Inputs:
    if not secret:
        return Inputs([], [])
    name = "licensing-config"
    items = [{"key": key, "path": key} for key, _ in _LICENSE]
    mounts = [pods.mount(name, path, read_only=True, sub_path=key) for key, path in _LICENSE]
    return Inputs([{"name": name, "secret": {"secretName": secret, "items": items}}], mounts)


def _subscription(spec: DriverSpec, system: str, context: Context) -> Inputs:
    """CRI-O mounts Red Hat's subscriptions by itself; own repositories make them unnecessary."""
    on_crio = any(runtime_of(target) == CRIO for target in context.targets)
    if system == "rhel" and (spec.repo_config or on_crio):
        return Inputs([], [])
    paths = _SUBSCRIPTIONS.get(system, ())
    names = [f"subscription-config-{number}" for number, _ in enumerate(paths)]
    return Inputs(
        [pods.host_volume(name, host, kind) for name, (_, host, kind) in zip(names, paths, strict=True)],
        [pods.mount(name, path, read_only=True) for name, (path, *_) in zip(names, paths, strict=True)],
    )
