"""Settings of an inventory file, and their resolution: release, inventory and pool become complete specs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints
from urllib.parse import quote

from gpu_provision.inventory.document import Source, absolute_path, resolve_fleet
from gpu_provision.inventory.json_schema import ADDRESSES
from gpu_provision.inventory.references import read_certificates
from gpu_provision.model import driver_specs, monitoring_specs, operand_specs, specs
from gpu_provision.model.cluster import Kind
from gpu_provision.model.extra_objects import EXTRA_KINDS
from gpu_provision.model.hosts import ConnectionMethod, Expectation, HelperPod, HostPrerequisites, Preflight, SshOptions
from gpu_provision.model.inventory import (
    ClusterConfig,
    Gpu,
    HistorySection,
    Inventory,
    MigGeometry,
    Node,
    NodePool,
    OperatingSystem,
    PoolPlugin,
)
from gpu_provision.model.rollout_policy import RolloutPolicy
from gpu_provision.model.settings import REQUIRED, setting
from gpu_provision.releases import DEFAULT, Release

Data = dict[str, Any]
_Record = TypeVar("_Record")
_Operand = TypeVar("_Operand", bound=operand_specs.ContainerSpec)


@dataclass(frozen=True, kw_only=True)
class PoolSection(NodePool):
    """Nodes of one kind. A pool without `gpu` gets no GPU component."""

    connect: ConnectionMethod = setting(
        ConnectionMethod.SSH, "How hosts of this pool are reached; overrides the inventory's `connect`.", shown=False
    )


@dataclass(frozen=True, kw_only=True)
class InventoryFile:
    """Nodes, their GPUs and their software."""

    name: str = setting(
        REQUIRED,
        "Name of this stack in the cluster; all its objects are members of it. Do not change it later: objects of the "
        "old name would stay in the cluster.",
        "name",
        examples=["prod"],
    )
    cluster: ClusterConfig = setting(REQUIRED)
    release: str = setting(
        DEFAULT,
        "Set of component versions. The version of a single component can be set in its section.",
        minLength=1,
        maxLength=40,
        examples=["26.7.0", "25.10.1"],
    )
    registry: str = setting(
        "",
        "Mirror that replaces the registry host of every image of the release: `nvcr.io/nvidia/driver` becomes "
        "`<registry>/nvidia/driver`. A component's own `repository` is not changed.",
        "repository",
        examples=["registry.example.com/mirror"],
    )
    image_pull_secrets: tuple[str, ...] = setting((), kind="image_pull_secrets")
    proxy: Mapping[str, str] = setting(
        {},
        "Proxies through which container runtimes of hosts pull images. The driver container gets them, too, unless "
        "they need credentials. A component's `env` and `host_prerequisites.proxy` override them.",
        "proxy",
        shown=False,
    )
    host_prerequisites: HostPrerequisites | None = setting(None)
    preflight: Preflight | None = setting(None)
    connect: ConnectionMethod = setting(
        ConnectionMethod.SSH,
        "How hosts are reached: over SSH, or through the Kubernetes API with a helper pod on the node.",
    )
    helper_pod: HelperPod | None = setting(
        None, "The pod through which hosts with `connect: kubernetes` are reached. It exists while a command runs."
    )
    ssh: SshOptions | None = setting(
        None,
        "SSH settings. Your own SSH configuration applies to what is not set here. Settings of a node override those "
        "of the inventory.",
    )
    nfd: specs.NfdSpec | None = setting(None)
    driver: driver_specs.DriverSpec | None = setting(None)
    gds: driver_specs.GdsSpec | None = setting(None)
    gdrcopy: driver_specs.GdrcopySpec | None = setting(None)
    rollout: RolloutPolicy | None = setting(None)
    history: HistorySection | None = setting(None)
    toolkit: specs.ToolkitSpec | None = setting(None)
    validator: specs.ValidatorSpec | None = setting(
        None,
        "The operator validator, and the image of the vectorAdd pods. Cannot be off: a run validates every node "
        "before it succeeds. `timeout` is also that of the validations.",
    )
    device_plugin: specs.DevicePluginSpec | None = setting(None)
    gfd: specs.GfdSpec | None = setting(None)
    mig_manager: specs.MigManagerSpec | None = setting(None)
    dcgm: monitoring_specs.DcgmSpec | None = setting(None)
    dcgm_exporter: monitoring_specs.DcgmExporterSpec | None = setting(None)
    node_status_exporter: monitoring_specs.NodeStatusExporterSpec | None = setting(None)
    daemonsets: specs.DaemonSetSettings | None = setting(None)
    host_paths: specs.HostPaths | None = setting(None)
    startup_taint: specs.StartupTaintSpec | None = setting(None)
    cdi: specs.CdiSection | None = setting(None)
    mig: specs.MigSection | None = setting(None)
    operator: specs.OperatorSection | None = setting(None)
    pools: Mapping[str, PoolSection] = setting({}, "Pools of nodes of one kind, by name.")
    extra_objects: tuple[Mapping[str, Any], ...] = setting(
        (),
        "Further objects of the stack, as manifests: applied last, and deleted once they are no longer here. "
        f"Kinds: {', '.join(sorted(each.kind for each in EXTRA_KINDS))}. Not for secrets: plans and records show them.",
        "extra_objects",
    )
    nodes: tuple[Node, ...] = setting((), "The machines. Nodes that a pool's node_selector selects need no entry.")


@cache
def section_type(name: str) -> type[Any]:
    """Return the record that declares the settings of a section of the inventory."""
    kind: type[Any] = get_args(get_type_hints(InventoryFile)[name])[0]
    return kind


SPECS: dict[str, type[operand_specs.ContainerSpec]] = {
    key: kind
    for key, kind in get_type_hints(specs.Specs).items()
    if isinstance(kind, type) and issubclass(kind, operand_specs.ContainerSpec)
}
"""Inventory key -> type of its spec."""

VALIDATIONS = tuple(
    name for name, kind in get_type_hints(specs.ValidatorSpec).items() if kind is specs.ValidationSettings
)
"""Keys of the validator's sections, one for each validation."""

AUTO = "auto"
"""Value of the driver's ``enabled``: a node's own driver if it has one, else the container."""

_NO_PREREQUISITES: Data = {"kernel_modules": [], "blacklist_nouveau": False}


def resolve(source: Source, data: Data, release: Release) -> Inventory:
    """Return the inventory that the data declares on top of a release."""
    base, cluster = source.path.parent, data.get("cluster", {})
    resolved = _build_specs(data, release)
    pools = {
        name: _build_pool(name, pool, data, release, resolved, _build_prerequisites(pool, data, base))
        for name, pool in data.get("pools", {}).items()
    }
    # A mirror also has the image of helper pods.
    image, secrets = _mirror(HelperPod().image, data.get("registry", "")), data.get("image_pull_secrets", [])
    helper_pod = {"image": image, "image_pull_secrets": secrets}
    paths = {
        "kubeconfig": absolute_path(cluster.get("kubeconfig", ""), base),
        "sandbox": resolve_fleet(cluster.get("sandbox", ""), base),
    }
    return Inventory(
        name=data.get("name", ""),
        path=str(source.path),
        digest=source.digest,
        text=source.text,
        release=release.name,
        cluster=_build(ClusterConfig, cluster | paths),
        specs=resolved,
        pools=pools,
        nodes=tuple(_build_node(node, data, base) for node in data.get("nodes", ()) if "name" in node),
        preflight=_build_section("preflight", data),
        rollout=_build_section("rollout", data),
        helper_pod=_build(HelperPod, helper_pod | data.get("helper_pod", {})),
        extra_objects=tuple(each for each in data.get("extra_objects", ()) if _is_complete_object(each)),
        kept_runs=_build_section("history", data).keep,
    )


def _is_complete_object(each: Data | None) -> bool:
    """Whether an object has a kind that an inventory may have, and a name; `checks` reports others."""
    kind = Kind((each or {}).get("apiVersion", ""), (each or {}).get("kind", ""))
    return each is not None and kind in EXTRA_KINDS and bool(each.get("metadata", {}).get("name"))


def merge(base: Data, over: Data) -> Data:
    """Merge settings over a base: mappings key by key; lists are replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _build_specs(data: Data, release: Release) -> specs.Specs:
    operands: dict[str, Any] = {key: _build_operand(key, kind, data, release) for key, kind in SPECS.items()}
    cdi, operator = _build_section("cdi", data), _build_section("operator", data)
    return specs.Specs(
        **operands,
        daemonsets=_build_section("daemonsets", data),
        host_paths=_build_section("host_paths", data),
        startup_taint=_build_section("startup_taint", data),
        cdi_enabled=cdi.enabled,
        nri_plugin_enabled=cdi.nri_plugin_enabled,
        mig_strategy=_build_section("mig", data).strategy,
        runtime_class=operator.runtime_class,
        operator_metrics=operator.metrics,
    )


def _build_section(name: str, data: Data) -> Any:
    return _build(section_type(name), data.get(name, {}))


def _build_operand(key: str, kind: type[_Operand], data: Data, release: Release) -> _Operand:
    """Return the spec of one component: its section on top of the release and the inventory's shared settings."""
    section = data.get(key, {})
    settings, env = dict(section), section.get("env", {})
    if key == "driver":
        enabled = section.get("enabled", True)
        settings["manager"] = _build_manager(section.get("manager", {}), data, release)
        settings |= {"enabled": enabled is not False, "prefer_host": enabled == AUTO}
        env = container_env(data.get("proxy", {}), env) | env
    secrets = (*data.get("image_pull_secrets", ()), *section.get("image_pull_secrets", ()))
    settings |= {
        "image": _build_image(release.image(key), section, data),
        "image_pull_secrets": [*dict.fromkeys(secrets)],
    }
    if key == "validator":
        own = {name: section.get(name, {}).get("env", {}) for name in VALIDATIONS}
        settings |= {name: specs.ValidationSettings(env=_build_env(each)) for name, each in own.items()}
    settings.pop("env", None)
    return replace(_build(kind, settings), env=_build_env(env))


def _build_manager(section: Data, data: Data, release: Release) -> driver_specs.DriverManagerSpec:
    image = _build_image(release.image("driver_manager"), section, data)
    own = {key: value for key, value in section.items() if key != "env"} | {"image": image}
    return replace(_build(driver_specs.DriverManagerSpec, own), env=_build_env(section.get("env", {})))


def _build_env(env: Data) -> dict[str, str | operand_specs.SecretKey]:
    """Return variables: each is a text, or names a key of a Secret."""
    return {
        name: value if isinstance(value, str) else _build(operand_specs.SecretKey, value.get("secret", {}))
        for name, value in env.items()
    }


def _build_image(default: operand_specs.Image, section: Data, data: Data) -> operand_specs.Image:
    """Return an image. A registry mirror replaces the host of the release's repository, never a declared one."""
    return operand_specs.Image(
        repository=section.get("repository") or _mirror(default.repository, data.get("registry", "")),
        image=section.get("image") or default.image,
        version=section.get("version") or default.version,
    )


def _mirror(repository: str, registry: str) -> str:
    return f"{registry}/{repository.partition('/')[2]}" if registry and repository else repository


def _build(kind: type[_Record], section: Mapping[str, Any]) -> _Record:
    """Return a frozen record from those keys of the section that it has; its own defaults fill the rest."""
    makers = _field_types(kind)  # type: ignore[arg-type]
    return kind(**{key: _build_value(makers[key], value) for key, value in section.items() if key in makers})


@cache
def _field_types(kind: type[Any]) -> dict[str, tuple[type[Any], ...]]:
    """Return the record and enumeration types of each field of a record."""
    hints = get_type_hints(kind)
    result: dict[str, tuple[type[Any], ...]] = {}
    for field in fields(kind):
        types = [each for each in _hint_parts(hints[field.name]) if isinstance(each, type)]
        result[field.name] = tuple(each for each in types if is_dataclass(each) or issubclass(each, StrEnum))
    return result


def _hint_parts(hint: Any) -> tuple[Any, ...]:
    """Return the types that a type hint is made of: those in ``tuple[Day, ...]`` or ``Canary | None``."""
    inner = get_args(hint)
    return tuple(part for each in inner for part in _hint_parts(each)) if inner else (hint,)


def _build_value(makers: tuple[type[Any], ...], value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_build_value(makers, each) for each in value if each is not None)
    if isinstance(value, dict) and (record := next(filter(is_dataclass, makers), None)):
        return _build(record, value)
    if isinstance(value, str) and (named := next((each for each in makers if issubclass(each, StrEnum)), None)):
        return named(value)
    return value


def _build_pool(  # noqa: PLR0913, PLR0917  a pool and what it falls back on
    name: str, pool: Data, data: Data, release: Release, shared: specs.Specs, host: HostPrerequisites
) -> NodePool:
    gpu = pool.get("gpu")
    changes = {key: pool[key] for key in ("driver", *driver_specs.MODULE_SECTIONS) if pool.get(key)}
    of_driver: dict[str, Any] = {
        key: _build_operand(key, SPECS[key], {**data, key: merge(data.get(key, {}), change)}, release)
        for key, change in changes.items()
    }
    return NodePool(
        name=name,
        os=OperatingSystem.parse(pool.get("os", "")),
        gpu=_build(Gpu, gpu) if gpu is not None else None,
        mig=MigGeometry(config=pool["mig"].get("config", "")) if "mig" in pool else None,
        driver=of_driver.get("driver", shared.driver),
        gds=of_driver.get("gds", shared.gds),
        gdrcopy=of_driver.get("gdrcopy", shared.gdrcopy),
        overrides_driver=bool(changes.keys() - {"driver"} or changes.get("driver", {}).keys() - {"upgrade_policy"}),
        overrides_upgrades="upgrade_policy" in changes.get("driver", {}),
        device_plugin=_build(PoolPlugin, pool.get("device_plugin", {})),
        labels=pool.get("labels", {}),
        node_selector=pool.get("node_selector", {}),
        host_prerequisites=host,
    )


def _build_prerequisites(pool: Data, data: Data, base: Path, over: Data | None = None) -> HostPrerequisites:
    """Return the host prerequisites; machines without a GPU have no modules by default."""
    shared = merge({"proxy": data.get("proxy", {})}, data.get("host_prerequisites", {}))
    below = shared if pool.get("gpu") is not None else {**shared, **_NO_PREREQUISITES}
    own = merge(merge(below, pool.get("host_prerequisites", {})), over or {})
    files = [absolute_path(name, base) for name in own.get("ca_certificates", ()) if name]
    read: Data = {name: {key: str(each) for key, each in own.get(name, {}).items()} for name in ("sysctls", "limits")}
    read["proxy"] = runtime_proxy(own["proxy"], base)
    read["ca_certificates"] = list(dict.fromkeys(text for file in files for text in read_certificates(file)))
    return _build(HostPrerequisites, own | read)


def _build_node(node: Data, data: Data, base: Path) -> Node:
    pool = data.get("pools", {}).get(node.get("pool", ""), {})
    ssh = merge(data.get("ssh", {}), node.get("ssh", {}))
    paths = {key: absolute_path(ssh.get(key, ""), base) for key in ("key", "known_hosts_file")}
    own = node.get("host_prerequisites")
    return Node(
        name=node["name"],
        pool=node.get("pool", ""),
        address=node.get("address", ""),
        ssh=_build(SshOptions, ssh | paths),
        connect=ConnectionMethod({**data, **pool, **node}.get("connect", ConnectionMethod.SSH)),
        labels=node.get("labels", {}),
        host_prerequisites=None if own is None else _build_prerequisites(pool, data, base, own),
    )


_CONFIGS = ("CONTAINERD_CONFIG", "CRIO_CONFIG", "DOCKER_CONFIG", "RUNTIME_CONFIG")
_SOCKETS = ("CONTAINERD_SOCKET", "DOCKER_SOCKET", "RUNTIME_SOCKET")


def expected_of(inventory: Inventory, node: Node) -> Expectation:
    """Return what the inventory expects of a node."""
    pool = inventory.pool_of(node)
    driver, toolkit = pool.driver, inventory.specs.toolkit
    prerequisites = inventory.prerequisites_of(node)
    image = f"{driver.image.repository}/{driver.image.image}"
    has_proxy = any(name.lower() in ADDRESSES and value for name, value in driver.env.items())
    return Expectation(
        node=node.name,
        pool=pool.name,
        os=f"{pool.os.id}{pool.os.version}" if pool.os else "",
        gpu_model=pool.gpu.model if pool.gpu else "",
        gpu_count=pool.gpu.count if pool.gpu else 0,
        any_gpu=pool.takes_any_gpu,
        driver_container=driver.enabled,
        driver_auto=driver.prefer_host,
        driver_image=image if driver.enabled else "",
        driver_version=driver.image.version,
        driver_precompiled=driver.enabled and driver.use_precompiled,
        kernel_module_type=driver.kernel_module_type,
        rdma=driver.enabled and driver.rdma.enabled,
        driver_has_proxy=bool(driver.repo_config) or has_proxy,
        toolkit=toolkit.enabled and not inventory.specs.nri_plugin_enabled,
        toolkit_version=toolkit.image.version,
        toolkit_dir=toolkit.install_dir if toolkit.enabled else "",
        toolkit_drop_in=_first_setting(toolkit, ("RUNTIME_DROP_IN_CONFIG",)),
        toolkit_source=_first_setting(toolkit, ("RUNTIME_CONFIG_SOURCE",)),
        toolkit_config=_first_setting(toolkit, _CONFIGS),
        toolkit_socket=_first_setting(toolkit, _SOCKETS),
        cdi=inventory.specs.cdi_enabled,
        blacklist_nouveau=prerequisites.blacklist_nouveau,
        hold_packages=prerequisites.hold_packages,
        kernel_modules=prerequisites.kernel_modules,
        # A sandbox has no registry.
        ask_registry=inventory.preflight.registry and not inventory.cluster.sandbox,
        ignore=inventory.preflight.ignore,
    )


def _first_setting(toolkit: specs.ToolkitSpec, names: tuple[str, ...]) -> str:
    return next((toolkit.settings[name] for name in names if toolkit.settings.get(name)), "")


def runtime_proxy(section: Mapping[str, Any], base: Path) -> dict[str, str]:
    """Return the settings of a ``proxy`` section for container runtimes, with credentials, without empty ones."""
    credentials = _read_credentials(absolute_path(section.get("credentials_file", ""), base))
    values = {key: section.get(key, "") for key in (*ADDRESSES, "no_proxy")}
    if not any(values[address] for address in ADDRESSES):
        return {}
    for key in ADDRESSES:
        if credentials and "@" not in values[key]:
            values[key] = re.sub(r"^([a-z0-9]+://)", lambda found: f"{found[1]}{credentials}@", values[key])
    return {key: value for key, value in values.items() if value}


def needs_credentials(section: Mapping[str, Any]) -> bool:
    """Return whether a ``proxy`` section has credentials."""
    return bool(section.get("credentials_file")) or any("@" in section.get(key, "") for key in ADDRESSES)


def container_env(section: Mapping[str, Any], own: Mapping[str, object]) -> dict[str, str]:
    """Return the proxy variables of the driver container, in upper and lower case.

    Empty if its own variables set a proxy, or if the proxies need credentials, which pods would show.
    """
    if needs_credentials(section) or any(name.lower() in ADDRESSES for name in own):
        return {}
    values = runtime_proxy(section, Path())
    return {name: value for key, value in values.items() for name in (key.upper(), key)}


def _read_credentials(path: str) -> str:
    """Return ``user:password``, quoted for a URL; empty without a readable file, which `checks` reports."""
    try:
        user, _, password = Path(path).read_text(encoding="utf-8").split("\n", 1)[0].strip().partition(":")
    except (OSError, ValueError):
        return ""
    return f"{quote(user, safe='')}:{quote(password, safe='')}"
