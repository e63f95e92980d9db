"""Kinds, first objects and admission of an OpenShift cluster."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from importlib import resources as files
from typing import Any

import yaml

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import Api, Object
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.server import ensure
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController
from gpu_provision.sandbox.fleet import Fleet, OpenShiftSpec, Timings
from gpu_provision.sandbox.machine_config import CONTROLLER_VERSION, POOLS, ROLE
from gpu_provision.sandbox.openshift import cluster_version_operator, scc
from gpu_provision.sandbox.openshift.cluster_version_operator import ClusterVersions
from gpu_provision.sandbox.openshift.machine_config_operator import Drains, Pools
from gpu_provision.sandbox.openshift.network_operator import TrustedBundles, effective_proxy

_NAMESPACES = (
    "openshift",
    "openshift-config",
    "openshift-config-managed",
    "openshift-machine-config-operator",
    "openshift-monitoring",
)
_MONITORED = "openshift.io/cluster-monitoring"
_USER_CA = "user-ca-bundle"
_IGNITION = {"ignition": {"version": "3.5.0"}}
_BUILT_IN_POOLS = ("master", "worker")
_START_SECONDS, _LOOK_SECONDS = 30.0, 0.05
_MACHINE_CONFIG = "machineconfiguration.openshift.io/v1"


def build_profile(spec: OpenShiftSpec) -> Callable[[Registry], None]:
    """Return what adds OpenShift to an API server; objects that exist already stay as they are."""

    def install(registry: Registry) -> None:
        # Served by an API server of its own in a real cluster, so there is no definition of it.
        stream = ResourceInfo("image.openshift.io", "v1", "imagestreams", "ImageStream", "imagestream",
            short_names=("is",), counts_generations=True, subresources=("status",))  # fmt: skip
        registry.catalog.add([stream])
        scc.install(registry)
        for obj in _first_objects(spec):
            ensure(registry, obj)

    return install


def build_operators(cluster: ControllerManager, timings: Timings) -> Iterator[QueueController[Any]]:
    """Return the operators of an OpenShift cluster."""
    yield Pools(cluster, timings)
    yield Drains(cluster, timings)
    yield ClusterVersions(cluster)
    yield TrustedBundles(cluster)


async def wait_until_ready(api: Api, fleet: Fleet) -> None:
    """Wait until the pools count all machines of a new cluster, but not for ever."""
    machines = sum(machine.release is not None for machine in fleet.machines)

    async def is_settled() -> bool:
        pools, _ = await api.list(POOLS)
        return sum(int(objects.status(pool).get("machineCount", 0)) for pool in pools) >= machines

    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while not await is_settled() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - at a start only
        await asyncio.sleep(_LOOK_SECONDS)


def _first_objects(spec: OpenShiftSpec) -> Iterator[Object]:
    definitions = (files.files(__package__) / "definitions.yaml").read_text("utf-8")
    yield from yaml.safe_load_all(definitions)
    for name in _NAMESPACES:
        labels = {_MONITORED: "true"} if name != "openshift" else {}
        yield _object("v1", "Namespace", name, labels=labels)
    yield from scc.standard_constraints()
    yield from _network(spec)
    yield from _machine_configs(spec)
    yield cluster_version_operator.new_cluster_version(spec.release, str(uuid.uuid4()))
    yield cluster_version_operator.toolkit_stream(spec.release)


def _object(
    version: str, kind: str, name: str, *, namespace: str = "", labels: Mapping[str, str] | None = None, **rest: Any
) -> Object:
    metadata: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata |= {"labels": labels} if labels else {}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _network(spec: OpenShiftSpec) -> Iterator[Object]:
    """Yield the proxy, and the certificates that its users trust."""
    proxy: Object = {"trustedCA": {"name": _USER_CA if spec.trusted_ca else ""}}
    names = {"http": "httpProxy", "https": "httpsProxy", "no_proxy": "noProxy"}
    proxy |= {names[key]: value for key, value in spec.proxy.items()}
    yield _object("config.openshift.io/v1", "Proxy", "cluster", spec=proxy, status=effective_proxy(proxy))
    if spec.trusted_ca:
        data = {"ca-bundle.crt": spec.trusted_ca}
        yield _object("v1", "ConfigMap", _USER_CA, namespace="openshift-config", data=data)


def _machine_configs(spec: OpenShiftSpec) -> Iterator[Object]:
    """Yield the MachineConfigs of a new cluster, and its pools."""
    release = spec.release
    for role in _BUILT_IN_POOLS:
        for name in (f"00-{role}", f"01-{role}-container-runtime", f"01-{role}-kubelet", f"99-{role}-ssh"):
            config: Object = {"config": objects.deep_copy(_IGNITION)}
            config |= {"osImageURL": release.os_image_url} if name.startswith("00-") else {}
            made = _object(_MACHINE_CONFIG, "MachineConfig", name, labels={ROLE: role}, spec=config)
            if not name.endswith("ssh"):
                made["metadata"]["annotations"] = {CONTROLLER_VERSION: release.version}
            yield made
        own = f"pools.operator.machineconfiguration.openshift.io/{role}"
        labels = {"machineconfiguration.openshift.io/mco-built-in": "", own: ""}
        yield _pool(role, {"matchLabels": {ROLE: role}}, labels)
    for name in spec.pools:
        yield _pool(name, {"matchExpressions": [{"key": ROLE, "operator": "In", "values": ["worker", name]}]}, {})


def _pool(name: str, selector: Object, labels: Mapping[str, str]) -> Object:
    nodes = {"matchLabels": {f"node-role.kubernetes.io/{name}": ""}}
    spec = {"machineConfigSelector": selector, "nodeSelector": nodes, "paused": False}
    return _object(_MACHINE_CONFIG, "MachineConfigPool", name, labels=labels, spec=spec)
