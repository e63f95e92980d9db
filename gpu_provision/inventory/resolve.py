"""Resolves the settings of an inventory: release, inventory and pool become complete specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from gpu_provision.inventory.document import Source, absolute_path, resolve_fleet
from gpu_provision.inventory.proxies import container_env, runtime_proxy
from gpu_provision.inventory.references import read_certificates
from gpu_provision.inventory.sections import SPECS, section_type
from gpu_provision.model import driver_specs, operand_specs, specs
from gpu_provision.model.cluster import Kind
from gpu_provision.model.extra_objects import EXTRA_KINDS
from gpu_provision.model.hosts import ConnectionMethod, HelperPod, HostPrerequisites, SshOptions
from gpu_provision.model.inventory import (
    ClusterConfig,
    Gpu,
    Inventory,
    MigGeometry,
    Node,
    NodePool,
    OperatingSystem,
    PoolPlugin,
)
from gpu_provision.releases import Release

Data = dict[str, Any]
_Record = TypeVar("_Record")
_Operand = TypeVar("_Operand", bound=operand_specs.ContainerSpec)

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
        openshift=_build_section("openshift", data) if "openshift" in data else None,
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
    operands: dict[str, Any] = {
        key: _build_operand(key, kind, data.get(key, {}), data, release) for key, kind in SPECS.items()
    }
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


def _build_operand(key: str, kind: type[_Operand], section: Data, data: Data, release: Release) -> _Operand:
    """Return the spec of one component: its section on top of the release and the inventory's shared settings."""
    settings = dict(section)
    if key == "driver":
        enabled, manager, env = section.get("enabled", True), section.get("manager", {}), section.get("env", {})
        settings["manager"] = _build_operand("driver_manager", driver_specs.DriverManagerSpec, manager, data, release)
        settings |= {"enabled": enabled is not False, "prefer_host": enabled == "auto"}
        settings["env"] = container_env(data.get("proxy", {}), env) | env
    secrets = (*data.get("image_pull_secrets", ()), *section.get("image_pull_secrets", ()))
    settings |= {
        "image": _build_image(release.image(key), section, data),
        "image_pull_secrets": [*dict.fromkeys(secrets)],
    }
    return _build(kind, settings)


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
    known = {key: value for key, value in section.items() if key in makers}
    return kind(
        **{
            key: _build_env(value) if operand_specs.SecretKey in makers[key] else _build_value(makers[key], value)
            for key, value in known.items()
        }
    )


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
        key: _build_operand(key, SPECS[key], merge(data.get(key, {}), change), data, release)
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
