"""A simulated OpenShift cluster in this process: the real store, operators and machines, time lapsed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES, ApiResource, Object
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.resources import RequestInfo
from gpu_provision.sandbox.apiserver.server import bootstrap, ensure
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.fleet import Fleet, OpenShiftSpec, Timings
from gpu_provision.sandbox.fleet_file import load_fleet
from gpu_provision.sandbox.machine_config import MACHINE_CONFIGS, POOLS, ROLE
from gpu_provision.sandbox.openshift.profile import build_profile
from gpu_provision.sandbox.openshift_releases import RELEASES
from tests.sandbox.lab import Lab, Simulate, simulator

GPU_NODES = ("gpu-0", "gpu-1")
OLD, NEW, NEXT = RELEASES["4.18.13"], RELEASES["4.18.24"], RELEASES["4.19.15"]


class OpenShift:
    """The registry of an OpenShift cluster, without machines."""

    def __init__(self, **spec: Any) -> None:
        self.store = Store(":memory:")
        self.registry = Registry(self.store)
        bootstrap(self.registry, "no certificate")
        build_profile(OpenShiftSpec(release=OLD, **spec))(self.registry)

    def submit(self, manifest: Object) -> None:
        ensure(self.registry, manifest)

    def pod(self, body: Object, *, user: str = "", namespace: str = "default") -> Object:
        info = next(each for each in self.registry.catalog if each.storage == "/pods")
        containers = [{"name": "main", "image": "example.org/app:1", **body.get("container", {})}]
        spec = {"automountServiceAccountToken": False, **body.get("spec", {}), "containers": containers}
        made = {"metadata": {"generateName": "app-", **body.get("metadata", {})}, "spec": spec}
        return self.registry.create(RequestInfo(info, namespace), made, WriteOptions(user=user)).copy()


@pytest.fixture
def openshift() -> Iterator[OpenShift]:
    made = OpenShift()
    yield made
    made.store.close()


def use_binding(constraint: str) -> Object:
    """Return the RoleBinding that lets the default account use a constraint."""
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": f"system:openshift:scc:{constraint}"}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    metadata = {"name": constraint, "namespace": "default"}
    kind = {"apiVersion": f"{group}/v1", "kind": "RoleBinding"}
    return {**kind, "metadata": metadata, "roleRef": role, "subjects": [subject]}


def machine_config(name: str, *, role: str = "worker", files: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return a MachineConfig; ``files`` are texts by path."""
    written = [{"path": path, "contents": {"source": f"data:,{text}"}} for path, text in (files or {}).items()]
    config = {"ignition": {"version": "3.2.0"}, **({"storage": {"files": written}} if written else {})}
    metadata = {"name": name, "labels": {ROLE: role}}
    kind = {"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig"}
    return {**kind, "metadata": metadata, "spec": {"config": config, **spec}}


class OpenShiftLab(Lab):
    """A running cluster of OpenShift."""

    async def pool(self, name: str = "worker") -> Object:
        return await self.api.get(POOLS, name)

    async def node(self, name: str = "gpu-0") -> Object:
        return await self.api.get(NODES, name)

    async def condition(self, kind: str, pool: str = "worker") -> Object:
        """Return the pool once this condition of it is True."""

        async def found() -> Object | None:
            live = await self.pool(pool)
            return live if objects.has_condition(live, kind) else None

        return dict(await self.until(found, f"{kind} of pool {pool}"))

    async def rolled(self, source: str, pool: str = "worker", *, present: bool = True) -> Object:
        """Return the pool once all its nodes have a configuration with this MachineConfig, or without it."""

        async def found() -> Object | None:
            live = await self.pool(pool)
            sources = objects.value_at(live, "status", "configuration", "source") or ()
            names = [each["name"] for each in sources]
            return live if (source in names) is present and objects.has_condition(live, "Updated") else None

        return dict(await self.until(found, f"{source} on pool {pool}"))

    async def rendered(self, pool: str = "worker") -> Object:
        name = (await self.pool(pool))["spec"]["configuration"]["name"]
        return await self.api.get(MACHINE_CONFIGS, name)

    async def delete(self, resource: ApiResource, name: str) -> None:
        await self.api.delete(resource, name)


def fleet(**openshift: Any) -> Fleet:
    """Return the built-in fleet without its custom pool: its three workers are in one."""
    found = load_fleet("openshift")
    assert found.openshift is not None
    of_workers = (replace(each, roles=("worker",)) if each.gpu else each for each in found.machines)
    settings = replace(found.openshift, **{"pools": (), **openshift})
    return replace(found, timings=Timings(speed=50, lease=5), machines=tuple(of_workers), openshift=settings)


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    return simulator(OpenShiftLab, tmp_path, fleet())
