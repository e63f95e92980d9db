"""MachineConfigs: `host_prerequisites` of OpenShift nodes, which the Machine Config Operator rolls out by reboots.

A MachineConfigPool gets one MachineConfig with the role of the pool. The operator merges it with the others of the pool
into a rendered MachineConfig, whose name each node shows once it has it (docs of openshift/machine-config-operator).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any
from urllib.parse import quote

from gpu_provision.components.objects import digest, manifest
from gpu_provision.model import codes
from gpu_provision.model.cluster import Kind, Manifest, RenderContext, Target
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.hosts import HostPrerequisites, unit_limits
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.label_selectors import selector_of
from gpu_provision.model.openshift import ConfigIdentity, MachinePool, OpenShiftFacts
from gpu_provision.model.openshift_specs import KUBERNETES, OpenShiftSection
from gpu_provision.model.text import MAX_NODES, join_limited, nodes_at, pluralize

NAME = "machine_config"
TITLE = "MachineConfigs"
REQUIRES: tuple[str, ...] = ()

MACHINE_CONFIG = Kind("machineconfiguration.openshift.io/v1", "MachineConfig")
ROLE = "machineconfiguration.openshift.io/role"
_IGNITION = "3.2.0"  # read by OpenShift 4.7 and later
_EMPTY = {"config": {"ignition": {"version": _IGNITION}}}
_MODE = 0o644
_MARKER = "/etc/gpu-provision/machine-config-"
"""Beginning of the file that names the content, so that each change of it makes another rendered MachineConfig."""

_MODULES, _SYSCTLS = "/etc/modules-load.d/gpu-provision.conf", "/etc/sysctl.d/90-gpu-provision.conf"
_HEADER = "# Written by a MachineConfig of gpu-provision."
# RHCOS has a fixed initramfs, so only the command line keeps them away from the start of the kernel on.
_NO_NOUVEAU = "modprobe.blacklist=nouveau,nova_core,nova_drm"
_NOT_CARRIED = ("kernel_headers", "hold_packages", "runtime_imports", "dev_char_symlinks", "proxy", "ca_certificates")
"""Settings that a MachineConfig could not carry, or that another object of the cluster carries."""


def spec(inventory: Inventory) -> OpenShiftSection | None:
    """Return the section of OpenShift; None if MachineConfigs are off, or the inventory declares Kubernetes."""
    section = inventory.openshift or OpenShiftSection()
    return section if section.machine_config and inventory.cluster.platform != KUBERNETES else None


def has_machine_configs(inventory: Inventory) -> bool:
    """Whether an inventory has host prerequisites that MachineConfigs carry on an OpenShift cluster."""
    pools = (pool for pool in inventory.pools.values() if pool.gpu)
    return spec(inventory) is not None and any(pool.host_prerequisites.enabled for pool in pools)


def is_needed(_spec: OpenShiftSection, context: RenderContext) -> bool:
    """Whether the cluster is an OpenShift cluster."""
    return context.openshift is not None


def manifests(_spec: OpenShiftSection, context: RenderContext) -> list[Manifest]:
    """Return the MachineConfig of each MachineConfigPool with GPU nodes."""
    wanted = ((pool, settings[0]) for pool, settings in _settings_by_pool(context) if _is_reached(pool))
    return [_machine_config(pool.name, machine_config_spec(settings)) for pool, settings in wanted]


def _machine_config(pool: str, content: Mapping[str, Any]) -> Manifest:
    name = f"99-{pool}-gpu-provision"  # those of users begin with 99, too, and merge in the order of names
    marker = _file(f"{_MARKER}{pool}", digest([name, content]))
    ignition = content["config"]
    files = [*ignition.get("storage", {}).get("files", ()), marker]
    return manifest(
        MACHINE_CONFIG, name, labels={ROLE: pool}, spec={**content, "config": {**ignition, "storage": {"files": files}}}
    )


def machine_config_spec(settings: HostPrerequisites) -> dict[str, Any]:
    """Return the spec of a MachineConfig that carries host prerequisites, without the file that names its content."""
    files = []
    if settings.kernel_modules:
        files.append(_file(_MODULES, _HEADER, *settings.kernel_modules))
    if settings.sysctls:
        files.append(_file(_SYSCTLS, _HEADER, *(f"{key} = {value}" for key, value in settings.sysctls.items())))
    config: dict[str, Any] = {"ignition": {"version": _IGNITION}}
    if files:
        config["storage"] = {"files": files}
    if settings.limits:
        lines = "\n".join([_HEADER, "[Service]", *unit_limits(settings.limits), ""])
        drop_in = {"name": "90-gpu-provision-limits.conf", "contents": lines}
        config["systemd"] = {"units": [{"name": "crio.service", "dropins": [drop_in]}]}
    arguments = _kernel_arguments(settings)
    return {"config": config, **({"kernelArguments": arguments} if arguments else {})}


def _kernel_arguments(settings: HostPrerequisites) -> list[str]:
    """Return the arguments; the kernel reads the number of huge pages after their size."""
    pages = ((f"hugepagesz={size.removesuffix('i')}", f"hugepages={n}") for size, n in settings.hugepages.items())
    blacklist = (_NO_NOUVEAU,) if settings.blacklist_nouveau else ()
    return [*blacklist, *(part for pair in pages for part in pair), *settings.kernel_arguments]


def _file(path: str, *lines: str) -> dict[str, Any]:
    source = quote("\n".join([*lines, ""]))
    return {"path": path, "mode": _MODE, "overwrite": True, "contents": {"source": f"data:,{source}"}}


def content_digests(config: Manifest) -> frozenset[str]:
    """Return the digests of the MachineConfigs of the tool that a MachineConfig, such as a rendered one, holds."""
    storage = ((config.get("spec") or {}).get("config") or {}).get("storage") or {}
    marks = (each for each in storage.get("files") or () if str(each.get("path", "")).startswith(_MARKER))
    sources = (str((each.get("contents") or {}).get("source", "")) for each in marks)
    return frozenset(source.removeprefix("data:,").removesuffix("%0A") for source in sources)


def prerequisites_of(target: Target, inventory: Inventory) -> HostPrerequisites:
    """Return the host prerequisites of a GPU node: its own, or those of its pool."""
    listed = next((node for node in inventory.nodes if node.name == target.name), None)
    return (listed and listed.host_prerequisites) or target.pool.host_prerequisites


def _settings_by_pool(context: RenderContext) -> Iterator[tuple[MachinePool, list[HostPrerequisites]]]:
    """Yield each MachineConfigPool with GPU nodes, and the different host prerequisites of these nodes.

    Without a cluster one pool stands for all.
    """
    openshift, inventory = context.openshift or OpenShiftFacts(), context.inventory
    if not context.facts.version:
        pools = (pool.host_prerequisites for pool in inventory.pools.values() if pool.gpu)
        if settings := _distinct(pools):
            yield MachinePool(name="worker", config_selector={"matchLabels": {ROLE: "worker"}}), settings[:1]
        return
    targets = {target.name: target for target in (*context.targets, *context.others)}
    for pool in openshift.pools:
        own = (prerequisites_of(targets[name], inventory) for name in pool.nodes if name in targets)
        if settings := _distinct(own):
            yield pool, settings


def _distinct(settings: Iterable[HostPrerequisites]) -> list[HostPrerequisites]:
    """Return one of those that make equal MachineConfigs; none of those that are off, or that ask for nothing."""
    specs = ((machine_config_spec(each), each) for each in settings if each.enabled)
    by_content = {digest(content): each for content, each in specs if content != _EMPTY}
    return [*by_content.values()]


def _is_reached(pool: MachinePool) -> bool:
    return selector_of(pool.config_selector)({ROLE: pool.name})


def is_rolled(target: Target, context: RenderContext) -> bool:
    """Whether a run rolls a MachineConfig out to a node: one of its pool, also for the other nodes of the pool."""
    section, openshift = spec(context.inventory), context.openshift
    if section is None or openshift is None or not context.selection.has_component(NAME):
        return False
    pool = openshift.pool_of(target.name)
    return any(pool in reached_pools(each, openshift) for each in manifests(section, context))


def reached_pools(config: Manifest, openshift: OpenShiftFacts) -> tuple[MachinePool, ...]:
    """Return the pools that select a MachineConfig: custom pools select those of the role ``worker`` as well."""
    labels = config["metadata"].get("labels") or {}
    return tuple(pool for pool in openshift.pools if selector_of(pool.config_selector)(labels))


def reboot_effects(item: Manifest, openshift: OpenShiftFacts | None) -> tuple[str, ...]:
    """Return which nodes reboot when an object is written or deleted: none, if it is no MachineConfig."""
    pools = reached_pools(item, openshift) if openshift and item["kind"] == MACHINE_CONFIG.kind else ()
    reached = ((pool, pluralize(len(pool.nodes), "node")) for pool in pools if pool.nodes)
    return tuple(
        f"reboots {nodes} of MachineConfigPool {pool.name}, {pool.max_unavailable} at a time" for pool, nodes in reached
    )


def problems(_spec: OpenShiftSection, context: RenderContext) -> tuple[Finding, ...]:
    """Return pools that would not roll the MachineConfigs out, and nodes and settings that they do not reach."""
    if context.openshift is None:
        return tuple(_arguments_elsewhere(context))
    settings = [*_settings_by_pool(context)]
    return (
        *(_stuck_pool(pool) for pool in _stuck_pools(context, context.openshift)),
        *(_unreached_pool(pool, context) for pool, _ in settings if not _is_reached(pool)),
        *_nodes_without_pool(context, context.openshift),
        *(_different_settings(pool, own) for pool, own in settings if len(own) > 1),
        *_settings_not_carried(context, context.openshift),
    )


def _stuck_pools(context: RenderContext, openshift: OpenShiftFacts) -> Iterator[MachinePool]:
    """Yield paused and degraded pools that lack a MachineConfig of the stack."""
    wanted = manifests(OpenShiftSection(), context)
    for pool in openshift.pools:
        lacking = (each for each in wanted if not openshift.holds(pool, pool.rendered, identity_of(each)))
        if pool.stuck_reason and any(pool in reached_pools(each, openshift) for each in lacking):
            yield pool


def identity_of(config: Manifest) -> ConfigIdentity:
    """Return name and digest of a MachineConfig of the tool."""
    return ConfigIdentity(config["metadata"]["name"], next(iter(content_digests(config)), ""))


def _stuck_pool(pool: MachinePool) -> Finding:
    name = pool.name
    resume = f'oc patch machineconfigpool {name} --type merge -p \'{{"spec":{{"paused":false}}}}\''
    return Finding(
        code=codes.MACHINE_POOL_STUCK,
        what=f"MachineConfigPool {name} {pool.stuck_reason}",
        where=f"MachineConfigPool {name}",
        evidence=join_limited(pool.nodes, MAX_NODES),
        consequence="its nodes would not get the MachineConfig, and their drivers would wait; nothing is changed",
        fix=f"{resume}, and run again"
        if pool.paused
        else f"oc describe machineconfigpool {name} names the node and the reason; repair it and run again",
    )


def _unreached_pool(pool: MachinePool, context: RenderContext) -> Finding:
    names = {target.name for target in context.targets}
    return Finding(
        code=codes.MACHINE_CONFIG_UNREACHED,
        what=f"no MachineConfig of the role {pool.name} reaches MachineConfigPool {pool.name}",
        where=nodes_at([name for name in pool.nodes if name in names], MAX_NODES),
        evidence=f"its machineConfigSelector does not select {ROLE}: {pool.name}",
        consequence="these nodes would not get host_prerequisites; nothing is changed",
        fix=f"oc edit machineconfigpool {pool.name}, and add {pool.name} to the values of {ROLE} in its "
        "machineConfigSelector; or set openshift: {machine_config: false}",
    )


def _nodes_without_pool(context: RenderContext, openshift: OpenShiftFacts) -> Iterator[Finding]:
    lost = [
        target.name
        for target in context.targets
        if target.facts and openshift.pool_of(target.name) is None
        if prerequisites_of(target, context.inventory).enabled
    ]
    if not lost:
        return
    yield Finding(
        code=codes.MACHINE_CONFIG_UNREACHED,
        what="no MachineConfigPool configures these nodes: none selects them, or more than one custom pool does",
        where=nodes_at(lost, MAX_NODES),
        evidence=f"MachineConfigPools: {', '.join(pool.name for pool in openshift.pools) or 'none'}",
        consequence="these nodes would not get host_prerequisites; nothing is changed",
        fix="label each node for one pool (oc get machineconfigpools); or set openshift: {machine_config: false}",
    )


def _different_settings(pool: MachinePool, settings: Sequence[HostPrerequisites]) -> Finding:
    first, *others = settings
    names = [
        each.name
        for each in fields(first)
        if any(getattr(other, each.name) != getattr(first, each.name) for other in others)
    ]
    return Finding(
        code=codes.MACHINE_POOL_SHARED,
        what=f"nodes of MachineConfigPool {pool.name} have different host_prerequisites",
        where=f"MachineConfigPool {pool.name}",
        evidence=f"they differ in {', '.join(names)}",
        consequence="all nodes of a pool have one configuration; nothing is changed",
        fix="declare the same host_prerequisites for them, or make a MachineConfigPool for each kind of nodes",
    )


def _settings_not_carried(context: RenderContext, openshift: OpenShiftFacts) -> Iterator[Finding]:
    in_pools = (each for each in (*context.targets, *context.others) if openshift.pool_of(each.name))
    ignored = {name for target in in_pools for name in _ignored_settings(target, context.inventory)}
    if names := [name for name in _NOT_CARRIED if name in ignored]:
        yield Finding(
            code=codes.HOST_SETTING_IGNORED,
            what=f"MachineConfigs do not carry host_prerequisites.{', '.join(names)}",
            where="host_prerequisites",
            consequence="the nodes stay as they are in this respect",
            fix="remove these settings; proxy and certificates of the cluster are in its Proxy `cluster`",
            severity=Severity.WARNING,
        )


def _ignored_settings(target: Target, inventory: Inventory) -> Iterator[str]:
    """Yield the host prerequisites of a node that have no effect; the inventory's `proxy` is the driver's as well."""
    own, env, default = prerequisites_of(target, inventory), target.pool.driver.env, HostPrerequisites()
    if target.driver_group and all(env.get(name) == value for name, value in own.proxy.items()):
        default = replace(default, proxy=own.proxy)
    if own.enabled:
        yield from (name for name in _NOT_CARRIED if getattr(own, name) != getattr(default, name))


def _arguments_elsewhere(context: RenderContext) -> Iterator[Finding]:
    pools = {target.pool.name for target in context.targets if target.pool.host_prerequisites.kernel_arguments}
    if pools and context.facts.version:
        yield Finding(
            code=codes.HOST_SETTING_IGNORED,
            what="only MachineConfigs of OpenShift carry host_prerequisites.kernel_arguments",
            where=f"pools {', '.join(sorted(pools))}",
            consequence="the command line of these hosts' kernels stays as it is",
            fix="add the arguments to the hosts' boot loader, and remove the setting",
            severity=Severity.WARNING,
        )
