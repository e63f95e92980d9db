"""Reads what OpenShift's own API tells of a cluster: version, proxy, Driver Toolkit images, MachineConfigPools.

A right that is missing ends no reading: `OpenShiftFacts.unreadable` has its resource, for what depends on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpu_provision.components.machine_config import content_digests
from gpu_provision.kube.client import KINDS, KubeClient
from gpu_provision.model.cluster import Kind, Manifest, NodeFacts, ObjectRef
from gpu_provision.model.findings import ForbiddenError
from gpu_provision.model.label_selectors import selector_of
from gpu_provision.model.openshift import CURRENT_CONFIG, ClusterProxy, MachinePool, OpenShiftFacts, primary_pool

CONFIG_GROUP = "config.openshift.io"
"""API group that every OpenShift cluster serves, and no other cluster."""

CLUSTER_VERSION = ObjectRef(f"{CONFIG_GROUP}/v1", "ClusterVersion", "", "version")
PROXY = ObjectRef(f"{CONFIG_GROUP}/v1", "Proxy", "", "cluster")
DRIVER_TOOLKIT = ObjectRef("image.openshift.io/v1", "ImageStream", "openshift", "driver-toolkit")
MACHINE_CONFIG, MACHINE_CONFIG_POOL = (
    Kind("machineconfiguration.openshift.io/v1", kind) for kind in ("MachineConfig", "MachineConfigPool")
)


def read_openshift(cluster: KubeClient, groups: Collection[str], nodes: Collection[NodeFacts]) -> OpenShiftFacts | None:
    """Return the facts of an OpenShift cluster that serves these API groups; None of another cluster."""
    if CONFIG_GROUP not in groups:
        return None
    unreadable = set[str]()

    def get(ref: ObjectRef) -> Manifest:
        try:
            return cluster.get(ref) or {} if _group(ref.type) in groups else {}
        except ForbiddenError:
            unreadable.add(_resource(ref.type))
            return {}

    def pools() -> list[Manifest]:
        try:
            return cluster.list(MACHINE_CONFIG_POOL).items if _group(MACHINE_CONFIG_POOL) in groups else []
        except ForbiddenError:
            unreadable.add(_resource(MACHINE_CONFIG_POOL))
            return []

    version, proxy, toolkit, found = get(CLUSTER_VERSION), get(PROXY), get(DRIVER_TOOLKIT), pools()
    desired, running = _versions(version)
    machines = machine_pools(found, nodes)
    try:
        wanted = rendered_configs(machines, nodes) if _group(MACHINE_CONFIG) in groups else ()
        rendered = read_rendered(cluster, wanted)
    except ForbiddenError:
        unreadable.add(_resource(MACHINE_CONFIG))
        rendered = {}
    return OpenShiftFacts(
        version=running,
        update=desired if desired != running else "",
        proxy=_proxy(proxy),
        driver_toolkits=_images_by_tag(toolkit),
        pools=machines,
        rendered=rendered,
        unreadable=frozenset(unreadable),
    )


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


def read_rendered(cluster: KubeClient, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return which MachineConfigs of the tool rendered ones hold, by digest: one request each. Raises ForbiddenError.

    A rendered MachineConfig does not change, so that it is read once.
    """
    refs = (ObjectRef(*MACHINE_CONFIG, "", name) for name in sorted(names))
    return {ref.name: content_digests(cluster.get(ref) or {}) for ref in refs}


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
    conditions, rendered = status.get("conditions") or (), status.get("configuration") or {}
    wanted = spec.get("configuration") or {}
    return MachinePool(
        name=name,
        paused=bool(spec.get("paused")),
        nodes=tuple(nodes),
        conditions={each["type"]: each["status"] for each in conditions},
        messages={each["type"]: each.get("message", "") for each in conditions},
        rendered=rendered.get("name") or "",
        wanted=wanted.get("name") or "",
        sources=tuple(each["name"] for each in rendered.get("source") or ()),
        wanted_sources=tuple(each["name"] for each in wanted.get("source") or ()),
        config_selector=spec.get("machineConfigSelector") or {},
        max_unavailable=spec.get("maxUnavailable") or 1,
        machines=status.get("machineCount") or 0,
        updated=status.get("updatedMachineCount") or 0,
        degraded_machines=status.get("degradedMachineCount") or 0,
    )
