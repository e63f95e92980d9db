"""What is read from the API of OpenShift, and what happens without a right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import KubeClient, ObjectList
from gpu_provision.kube.openshift import machine_pools, needed_resources, read_openshift
from gpu_provision.model.cluster import Kind, Manifest, NodeFacts, ObjectRef
from gpu_provision.model.findings import Finding, ForbiddenError
from gpu_provision.model.openshift import (
    CURRENT_CONFIG,
    ClusterProxy,
    MachinePool,
    OpenShiftFacts,
    RenderedConfig,
    primary_pool,
)
from tests.components import builders

GROUPS = frozenset(
    f"{group}.openshift.io" for group in ("config", "image", "machineconfiguration", "security", "route")
)
WORKER, GPU = "node-role.kubernetes.io/worker", "node-role.kubernetes.io/gpu"
NODES = (
    NodeFacts(name="master-0", labels={"node-role.kubernetes.io/master": "", WORKER: ""}),
    NodeFacts(name="gpu-1", labels={WORKER: "", GPU: ""}, annotations={CURRENT_CONFIG: "rendered-gone"}),
    NodeFacts(name="gpu-0", labels={WORKER: "", GPU: ""}),
    NodeFacts(name="worker-0", labels={WORKER: ""}),
    NodeFacts(name="edge-0", labels={}),
)
OBJECTS: dict[str, Manifest] = {
    "ClusterVersion": {
        "status": {
            "desired": {"version": "4.19.2", "image": "quay.io/release@sha256:22"},
            "history": [{"state": "Partial", "version": "4.19.2"}, {"state": "Completed", "version": "4.18.9"}],
        }
    },
    "Proxy": {
        "spec": {"httpProxy": "http://asked:3128", "trustedCA": {"name": "user-ca-bundle"}},
        "status": {"httpProxy": "http://proxy:3128", "httpsProxy": "http://proxy:3129", "noProxy": ".svc,10.0.0.0/8"},
    },
    "ImageStream": {
        "spec": {
            "tags": [
                {"name": "418.94.1-0", "from": {"kind": "DockerImage", "name": "quay.io/dtk@sha256:18"}},
                {"name": "", "from": {"kind": "DockerImage", "name": "quay.io/dtk@sha256:broken"}},
                {"name": "latest", "from": {"kind": "ImageStreamTag", "name": "418.94.1-0"}},
            ]
        },
        "status": {
            "tags": [
                {"tag": "418.94.1-0", "items": [{"dockerImageReference": "mirror/dtk@sha256:18"}]},
                {"tag": "417.93.0-0", "items": [{"dockerImageReference": "quay.io/dtk@sha256:17"}]},
                {"tag": "416.0.0-0", "items": None},
            ]
        },
    },
}


WANTED = {"name": "rendered-gpu-2", "source": [{"name": "00-worker"}, {"name": "99-gpu-gpu-provision"}]}
MARK = {"path": "/etc/gpu-provision/machine-config-gpu", "contents": {"source": "data:,da9aa632%0A"}}
RENDERED: dict[str, tuple[list[Manifest], str]] = {
    "rendered-gpu-2": ([MARK], "quay.io/os@sha256:2"),
    "rendered-gpu-1": ([], "quay.io/os@sha256:1"),
}


def machine_pool(name: str, **fields: Any) -> Manifest:
    role = {"matchExpressions": [{"key": f"node-role.kubernetes.io/{name}", "operator": "Exists"}]}
    return {"metadata": {"name": name}, "spec": {"nodeSelector": role, **fields}}


POOLS = [
    machine_pool("worker"),
    machine_pool("master"),
    {
        **machine_pool("gpu", paused=True, maxUnavailable="25%", configuration=WANTED),
        "status": {
            "configuration": {"name": "rendered-gpu-1", "source": [{"name": "00-worker"}, {"name": "99-gpu"}]},
            "conditions": [
                {"type": "Updated", "status": "False"},
                {"type": "NodeDegraded", "status": "True", "message": "Node gpu-1 is reporting:\n  disk full"},
            ],
            "machineCount": 2,
            "updatedMachineCount": 1,
            "degradedMachineCount": 1,
        },
    },
]


class Server:
    """Has the objects above, and refuses some kinds."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def get(self, ref: ObjectRef) -> Manifest | None:
        self._allow(ref.kind)
        if ref.kind == "MachineConfig":
            files, image = RENDERED.get(ref.name, ([], ""))
            return {"spec": {"osImageURL": image, "config": {"storage": {"files": files}}}} if image else None
        return OBJECTS.get(ref.kind)

    def list(self, kind: Kind) -> ObjectList:
        self._allow(kind.kind)
        return ObjectList(POOLS, "1")

    def _allow(self, kind: str) -> None:
        if kind in self.refused:
            raise ForbiddenError(Finding(code="GP303", what="no"))


def read(*refused: str, groups: frozenset[str] = GROUPS) -> OpenShiftFacts | None:
    return read_openshift(cast("KubeClient", Server(*refused)), groups, NODES)


KNOWN = OpenShiftFacts(
    version="4.18.9",
    update="4.19.2",
    proxy=ClusterProxy(
        http="http://proxy:3128", https="http://proxy:3129", no_proxy=".svc,10.0.0.0/8", trusted_ca="user-ca-bundle"
    ),
    driver_toolkits={"418.94.1-0": "quay.io/dtk@sha256:18", "417.93.0-0": "quay.io/dtk@sha256:17"},
    pools=(
        MachinePool(
            name="gpu",
            paused=True,
            nodes=("gpu-0", "gpu-1"),
            degraded="Node gpu-1 is reporting: disk full",
            rendered="rendered-gpu-1",
            wanted="rendered-gpu-2",
            sources=("00-worker", "99-gpu"),
            wanted_sources=("00-worker", "99-gpu-gpu-provision"),
            max_unavailable="25%",
            machines=2,
            updated=1,
        ),
        MachinePool(name="master", nodes=("master-0",)),
        MachinePool(name="worker", nodes=("worker-0",)),
    ),
    rendered={
        "rendered-gpu-1": RenderedConfig(os_image="quay.io/os@sha256:1"),
        "rendered-gpu-2": RenderedConfig(frozenset({"da9aa632"}), "quay.io/os@sha256:2"),
        "rendered-gone": RenderedConfig(),
    },
)


def test_everything_is_read() -> None:
    found = read()
    assert found == KNOWN
    assert (KNOWN.pool_of("gpu-1"), KNOWN.pool_of("edge-0")) == (KNOWN.pools[0], None)


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({"Degraded": ("True", "1 node"), "NodeDegraded": ("True", "disk full")}, "disk full"),
        ({"NodeDegraded": ("True", "disk full"), "RenderDegraded": ("True", "no Ignition")}, "no Ignition"),
        ({"Degraded": ("True", "1 node"), "RenderDegraded": ("False", "of last week")}, "1 node"),
        ({"Degraded": ("True", "")}, "no message"),
        ({"Degraded": ("True", None)}, "no message"),
        ({"Updating": ("True", "all nodes"), "Degraded": ("False", "")}, ""),
    ],
)
def test_the_most_precise_condition_says_why_a_pool_is_stuck(
    conditions: dict[str, tuple[str, str | None]], reason: str
) -> None:
    found = [{"type": kind, "status": status, "message": text} for kind, (status, text) in conditions.items()]
    [pool] = machine_pools([{**machine_pool("worker"), "status": {"conditions": found}}], ())
    assert pool.degraded == reason


def test_another_cluster_has_no_facts() -> None:
    assert read(groups=GROUPS - {"config.openshift.io"}) is None


UNKNOWN_POOLS: dict[str, Any] = {"pools": (), "rendered": {"rendered-gone": RenderedConfig()}}


@pytest.mark.parametrize(
    ("kind", "resource", "lacking"),
    [
        ("ClusterVersion", "clusterversions.config.openshift.io", {"version": "", "update": ""}),
        ("Proxy", "proxies.config.openshift.io", {"proxy": ClusterProxy()}),
        ("ImageStream", "imagestreams.image.openshift.io", {"driver_toolkits": {}}),
        ("MachineConfigPool", "machineconfigpools.machineconfiguration.openshift.io", UNKNOWN_POOLS),
        ("MachineConfig", "machineconfigs.machineconfiguration.openshift.io", {"rendered": {}}),
    ],
)
def test_a_missing_right_is_in_the_facts(kind: str, resource: str, lacking: dict[str, Any]) -> None:
    assert read(kind) == replace(KNOWN, unreadable=frozenset({resource}), **lacking)


def test_a_cluster_without_machine_configs() -> None:
    """A hosted control plane serves no MachineConfigPools."""
    assert read(groups=GROUPS - {"machineconfiguration.openshift.io"}) == replace(KNOWN, pools=(), rendered={})


@pytest.mark.parametrize(
    ("matching", "pool"),
    [
        ((), ""),
        (("worker",), "worker"),
        (("worker", "master"), "master"),
        (("worker", "gpu"), "gpu"),
        (("gpu",), "gpu"),
        (("gpu", "infra", "worker"), ""),
        (("gpu", "master"), "master"),
    ],
)
def test_the_pool_of_a_node(matching: tuple[str, ...], pool: str) -> None:
    assert primary_pool(matching) == pool


def test_a_missing_right_on_which_a_driver_depends_is_an_error() -> None:
    with pytest.raises(ForbiddenError):
        read_openshift(
            cast("KubeClient", Server("Proxy")), GROUPS, NODES, needed=frozenset({"proxies.config.openshift.io"})
        )


DRIVERS = {"clusterversions.config.openshift.io", "proxies.config.openshift.io"}
TOOLKIT = "imagestreams.image.openshift.io"
MACHINES = {f"{name}.machineconfiguration.openshift.io" for name in ("machineconfigpools", "machineconfigs")}


@pytest.mark.parametrize(
    ("inventory", "os", "needed"),
    [
        ({}, "rhcos4.18", {*DRIVERS, TOOLKIT}),
        ({}, "rhel8.10", DRIVERS),
        ({"openshift": {"use_ocp_driver_toolkit": False}}, "rhcos4.18", DRIVERS),
        ({"driver": {"version": "580", "use_precompiled": True}}, "rhcos4.18", set()),
        ({"driver": {"enabled": False}}, "rhcos4.18", set()),
    ],
)
def test_what_drivers_depend_on(inventory: dict[str, Any], os: str, needed: set[str]) -> None:
    ostree = "418.94.202503121207-0" if os == "rhcos4.18" else ""
    nodes = {key: {"os": os, "ostree": ostree, "kernel": "5.14"} for key in ("t4-1", "t4-2", "h100-1")}
    assert (
        needed_resources(builders.inventory_with(inventory), builders.observed_facts({"nodes": nodes}))
        == needed | MACHINES
    )


@pytest.mark.parametrize(
    "inventory",
    [
        {"cluster": {"platform": "kubernetes"}},
        {"openshift": {"machine_config": False}},
        {"host_prerequisites": {"enabled": False}},
    ],
)
def test_machine_configs_that_are_off_depend_on_nothing(inventory: dict[str, Any]) -> None:
    chosen = builders.inventory_with({"driver": {"enabled": False}, **inventory})
    assert needed_resources(chosen, builders.fleet()) == set()
