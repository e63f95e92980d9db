"""Reads the objects of an OpenShift cluster: version, proxy, Driver Toolkit images, MachineConfigPools.

A missing permission does not end the reading: `OpenShiftFacts.unreadable` has the resource, and findings name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpu_provision.components.machine_config import MACHINE_CONFIG, content_digests, has_machine_configs
from gpu_provision.components.targets import targets
from gpu_provision.kube.client import KINDS, KubeClient
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, NodeFacts, ObjectRef
from gpu_provision.model.findings import ForbiddenError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.label_selectors import selector_of
from gpu_provision.model.openshift import (
    CURRENT_CONFIG,
    ClusterProxy,
    MachinePool,
    OpenShiftFacts,
    RenderedConfig,
    primary_pool,
)

_T = TypeVar("_T")

CONFIG_GROUP = "config.openshift.io"
"""API group that every OpenShift cluster serves, and no other cluster."""

CLUSTER_VERSION = ObjectRef(f"{CONFIG_GROUP}/v1", "ClusterVersion", "", "version")
PROXY = ObjectRef(f"{CONFIG_GROUP}/v1", "Proxy", "", "cluster")
DRIVER_TOOLKIT = ObjectRef("image.openshift.io/v1", "ImageStream", "openshift", "driver-toolkit")
FOLLOWED = (CLUSTER_VERSION, PROXY, DRIVER_TOOLKIT)
"""Objects on which drivers depend, so that a change of one makes a reading outdated."""

MACHINE_CONFIG_POOL = Kind(MACHINE_CONFIG.api_version, "MachineConfigPool")
_DEGRADED = ("RenderDegraded", "NodeDegraded", "Degraded")
"""Conditions of a pool; the message of the first one that has a message is the most precise."""


def read_openshift(
    cluster: KubeClient, groups: Collection[str], nodes: Collection[NodeFacts], needed: Collection[str] = ()
) -> OpenShiftFacts | None:
    """Return the facts of an OpenShift cluster that serves these API groups; None of another cluster.

    Raises ForbiddenError for the ``needed`` resources.
    """
    if CONFIG_GROUP not in groups:
        return None
    unreadable = set[str]()

    def read(kind: Kind, request: Callable[[], _T], none: _T) -> _T:
        try:
            return request() if _group(kind) in groups else none
        except ForbiddenError:
            if _resource(kind) in needed:
                raise
            unreadable.add(_resource(kind))
            return none

    def get(ref: ObjectRef) -> Manifest:
        return read(ref.type, lambda: cluster.get(ref) or {}, {})

    own = platform_facts({ref: get(ref) for ref in FOLLOWED})
    found = read(MACHINE_CONFIG_POOL, lambda: cluster.list(MACHINE_CONFIG_POOL).items, list[Manifest]())
    pools = machine_pools(found, nodes)
    wanted = rendered_configs(pools, nodes)
    rendered = read(MACHINE_CONFIG, partial(read_rendered, cluster, wanted), dict[str, RenderedConfig]())
    return replace(own, pools=pools, rendered=rendered, unreadable=frozenset(unreadable))


def platform_facts(found: Mapping[ObjectRef, Manifest]) -> OpenShiftFacts:
    """Return the facts that these objects of `FOLLOWED` tell."""
    version, proxy, toolkit = (found.get(ref, {}) for ref in FOLLOWED)
    desired, running = _versions(version)
    update = desired if desired != running else ""
    return OpenShiftFacts(version=running, update=update, proxy=_proxy(proxy), driver_toolkits=_images_by_tag(toolkit))


def followed_objects(openshift: OpenShiftFacts | None) -> tuple[ObjectRef, ...]:
    """Return the objects of `FOLLOWED` that are there to be read; none on plain Kubernetes."""
    return tuple(ref for ref in FOLLOWED if openshift and _resource(ref.type) not in openshift.unreadable)


def needed_resources(inventory: Inventory, facts: ClusterFacts) -> frozenset[str]:
    """Return the resources on which driver containers and MachineConfigs of an OpenShift cluster depend.

    Without them, a plan would change drivers that run, or remove MachineConfigs. ``facts``: those without OpenShift's.
    """
    on_openshift = replace(facts, openshift=OpenShiftFacts())
    built = [
        each for each in targets(inventory, on_openshift) if each.driver_group and not each.pool.driver.use_precompiled
    ]
    kinds = [CLUSTER_VERSION.type, PROXY.type] if any(each.on_openshift for each in built) else []
    kinds += [DRIVER_TOOLKIT.type] if any(each.toolkit_release for each in built) else []
    kinds += [MACHINE_CONFIG_POOL, MACHINE_CONFIG] if has_machine_configs(inventory) else []
    return frozenset(map(_resource, kinds))


def _group(kind: Kind) -> str:
    return kind.api_version.partition("/")[0]


def _resource(kind: Kind) -> str:
    return f"{KINDS[kind]}.{_group(kind)}"


def _versions(version: Manifest) -> tuple[str, str]:
    """Return the version that the cluster is to run, and the one that it runs: the last that was completed."""
    status = version.get("status") or {}
    desired = str((status.get("desired") or {}).get("version") or "")
    # The newest one is the first.
    completed = (each["version"] for each in status.get("history") or () if each.get("state") == "Completed")
    return desired, str(next(completed, desired))


def _proxy(proxy: Manifest) -> ClusterProxy:
    effective = proxy.get("status") or {}
    return ClusterProxy(
        http=effective.get("httpProxy") or "",
        https=effective.get("httpsProxy") or "",
        no_proxy=effective.get("noProxy") or "",
        trusted_ca=((proxy.get("spec") or {}).get("trustedCA") or {}).get("name") or "",
    )


def _images_by_tag(stream: Manifest) -> dict[str, str]:
    """Return the image of each tag: the one that the release names, else the one that was imported."""
    imported = {
        each["tag"]: each["items"][0].get("dockerImageReference", "")
        for each in (stream.get("status") or {}).get("tags") or ()
        if each.get("items")
    }
    named = {
        each["name"]: each["from"].get("name", "")
        for each in (stream.get("spec") or {}).get("tags") or ()
        if (each.get("from") or {}).get("kind") == "DockerImage"
    }
    return {tag: image for tag, image in {**imported, **named}.items() if tag and image}


def rendered_configs(pools: Iterable[MachinePool], nodes: Iterable[NodeFacts]) -> frozenset[str]:
    """Return the names of the rendered MachineConfigs that pools and nodes have, or are to get."""
    of_pools = (name for pool in pools for name in (pool.rendered, pool.wanted))
    return frozenset(filter(None, (*of_pools, *(node.annotations.get(CURRENT_CONFIG) for node in nodes))))


def read_rendered(cluster: KubeClient, names: Iterable[str]) -> dict[str, RenderedConfig]:
    """Return rendered MachineConfigs by name: one request each. Raises ForbiddenError.

    A rendered MachineConfig does not change, so that it is read once.
    """
    found = {name: cluster.get(ObjectRef(*MACHINE_CONFIG, "", name)) or {} for name in sorted(names)}
    images = {name: (item.get("spec") or {}).get("osImageURL") or "" for name, item in found.items()}
    return {name: RenderedConfig(content_digests(item), images[name]) for name, item in found.items()}


def machine_pools(found: Iterable[Manifest], nodes: Iterable[NodeFacts]) -> tuple[MachinePool, ...]:
    """Return the MachineConfigPools, with the nodes of each."""
    pools = {item["metadata"]["name"]: item for item in found}
    selectors = {name: selector_of((item.get("spec") or {}).get("nodeSelector")) for name, item in pools.items()}
    members: dict[str, list[str]] = {}
    for node in nodes:
        pool = primary_pool(name for name, selects in selectors.items() if selects(node.labels))
        members.setdefault(pool, []).append(node.name)
    return tuple(_machine_pool(name, pools[name], sorted(members.get(name, ()))) for name in sorted(pools))


def _machine_pool(name: str, item: Manifest, nodes: list[str]) -> MachinePool:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    rendered, wanted = status.get("configuration") or {}, spec.get("configuration") or {}
    return MachinePool(
        name=name,
        paused=bool(spec.get("paused")),
        nodes=tuple(nodes),
        degraded=_degraded(status.get("conditions") or ()),
        rendered=rendered.get("name") or "",
        wanted=wanted.get("name") or "",
        sources=tuple(each["name"] for each in rendered.get("source") or ()),
        wanted_sources=tuple(each["name"] for each in wanted.get("source") or ()),
        config_selector=spec.get("machineConfigSelector") or {},
        max_unavailable=spec.get("maxUnavailable") or 1,
        machines=status.get("machineCount") or 0,
        updated=status.get("updatedMachineCount") or 0,
    )


def _degraded(conditions: Iterable[Mapping[str, str]]) -> str:
    """Return why a pool is degraded, in one line; empty if it is not."""
    true = {each["type"]: each.get("message") or "" for each in conditions if each["status"] == "True"}
    messages = [" ".join(true[kind].split()) for kind in _DEGRADED if kind in true]
    return next(filter(None, messages), "no message") if messages else ""
