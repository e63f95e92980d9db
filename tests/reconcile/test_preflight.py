"""Preflight of hosts, cluster and registry together."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model.cluster import ClusterFacts, NodeFacts
from gpu_provision.model.findings import Finding, ForbiddenError, Severity
from gpu_provision.model.hosts import ImageAvailability, ImageLookup, Preflight
from gpu_provision.model.inventory import ClusterConfig, Inventory, Node, OperatingSystem
from gpu_provision.model.openshift import CURRENT_CONFIG, MachinePool, OpenShiftFacts, RenderedConfig
from gpu_provision.model.openshift_specs import OpenShiftSection
from gpu_provision.reconcile import preflight as engine
from gpu_provision.reconcile.preflight import PreflightReport, preflight
from tests.components.builders import inventory

UBUNTU = OperatingSystem("ubuntu", "22.04")
NODE = NodeFacts(name="t4-1", os=UBUNTU, architecture="amd64")


class World:
    """What is there to be read, and what registries were asked."""

    def __init__(self) -> None:
        self.hosts = HostsResult()
        self.nodes: tuple[NodeFacts, ...] = (NODE,)
        self.image = ImageAvailability.PRESENT
        self.openshift: OpenShiftFacts | None = None
        self.lacking = ""  # a part of the names of images that exist for another architecture
        self.asked: list[tuple[str, str]] = []

    def ask(self, image: str, architecture: str) -> ImageLookup:
        self.asked.append((image, architecture))
        answer = ImageAvailability.OTHER_ARCHITECTURE if self.lacking and self.lacking in image else self.image
        return ImageLookup(image, answer, "answer of the registry")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(engine, "check_hosts", lambda *_, **__: world.hosts)
    monkeypatch.setattr(
        engine,
        "observe_facts",
        lambda *_: ClusterFacts(version="v1.34.1", nodes=world.nodes, openshift=world.openshift),
    )
    monkeypatch.setattr(engine, "Session", lambda _: type("Session", (), {"cluster": None}))
    monkeypatch.setattr(engine, "look_up_image", world.ask)
    return world


def stack(*, ignore: tuple[str, ...] = (), registry: bool = True) -> Inventory:
    return inventory(
        cluster=ClusterConfig(context="prod"),
        nodes=(Node(name="t4-1", pool="t4"),),
        preflight=Preflight(ignore=ignore, registry=registry),
    )


def judged(declared: Inventory, limit: tuple[str, ...] = ()) -> PreflightReport:
    return preflight(declared, limit=limit, listen=lambda _: None)


def codes(found: PreflightReport) -> list[tuple[str, str]]:
    return [(finding.code, finding.where) for finding in found.findings]


def error(where: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(code="GP620", where=where, what="x", severity=severity)


READ = HostOutcome(name="t4-1", gpus=1)


def test_errors_come_first(world: World) -> None:
    """Any source counts, and they fail the whole."""
    failed = HostOutcome(name="t4-1", gpus=1, failed=True, errors=(error("t4-1"),))
    world.hosts = HostsResult(hosts=(failed,), findings=(error("t4-2", Severity.WARNING),))
    world.nodes = ()
    found = judged(stack())
    assert codes(found) == [("GP620", "t4-1"), ("GP201", "node t4-1"), ("GP620", "t4-2")]
    assert found.failed


def test_a_host_that_cannot_be_read_is_an_ignorable_error(world: World) -> None:
    """Its reason is the evidence; its image is asked for by the cluster's word."""
    world.hosts = HostsResult(hosts=(HostOutcome(name="t4-1", failed=True, reason="connection refused"),))
    found = judged(stack())
    assert codes(found) == [("GP655", "t4-1")]
    assert found.findings[0].evidence == "connection refused"
    assert world.asked == [("nvcr.io/nvidia/driver:595.91.07-ubuntu22.04", "amd64")]
    assert not judged(stack(ignore=("GP655",))).failed


def test_all_missing_permissions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a plan: an administrator is asked once."""
    expected = ForbiddenError(Finding(code="GP310", what="a user lacks 2 permissions"))
    refused = ForbiddenError(Finding(code="GP303", what="GET nodes"))
    monkeypatch.setattr(engine, "Session", lambda _: type("Session", (), {"cluster": None}))
    monkeypatch.setattr(engine, "observe_facts", Mock(side_effect=refused))
    monkeypatch.setattr(engine, "missing_for_reading", lambda *given: expected if given[2] is refused else refused)
    with pytest.raises(ForbiddenError) as raised:
        judged(stack())
    assert raised.value is expected


def test_findings_of_hosts_stay_as_they_are(world: World) -> None:
    """Its error was turned into a warning already, which must not vanish now."""
    world.hosts = HostsResult(hosts=(READ,), findings=(error("t4-1", Severity.WARNING),))
    assert codes(judged(stack(ignore=("GP620",)))) == [("GP620", "t4-1")]


def test_managed_nodes_are_judged_by_cluster_and_registry(world: World) -> None:
    """No connection is made to them."""
    world.image = ImageAvailability.ABSENT
    found = judged(stack())
    assert codes(found) == [("GP660", "t4-1")]
    assert found.findings[0].evidence == "answer of the registry"


def test_old_runtime_is_reported_once(world: World) -> None:
    """Both the host and the node report it."""
    old = replace(error("t4-1"), code="GP640")
    world.hosts = HostsResult(hosts=(HostOutcome(name="t4-1", gpus=1, failed=True, errors=(old,)),))
    assert codes(judged(stack())) == [("GP640", "t4-1")]
    world.nodes = (replace(NODE, container_runtime="containerd", container_runtime_version="1.6.33"),)
    assert codes(judged(stack())) == [("GP407", "Node t4-1")]


def test_images_of_operands_are_asked_for_arm64(world: World) -> None:
    """A mirror may have copies of one platform; each image is one finding, with the nodes."""
    world.nodes, world.lacking = (replace(NODE, architecture="arm64"),), "container-toolkit"
    found = judged(stack())
    assert codes(found) == [("GP661", "Node t4-1")]
    assert "container-toolkit:v1.20.0" in found.findings[0].what
    assert "toolkit.version" in found.findings[0].fix
    assert {architecture for _, architecture in world.asked} == {"arm64"}
    assert len(world.asked) == len({*world.asked}) > 5
    assert not judged(stack(ignore=("GP661",))).failed


def test_images_of_operands_are_not_asked_offline(world: World) -> None:
    world.nodes = (replace(NODE, architecture="arm64"),)
    judged(stack(registry=False))
    assert not world.asked


RELEASE = "417.94.202410090854-0"
COREOS = replace(NODE, os=OperatingSystem("rhcos", "4.17"), ostree=RELEASE, container_runtime="cri-o")
UPDATING = OpenShiftFacts(
    version="4.17.9", update="4.18.1", driver_toolkits={RELEASE: "old", "418.94.202503121207-0": "new"}
)
NEXT = "nvcr.io/nvidia/driver:595.91.07-rhcos4.18"


def on_coreos(*, registry: bool = True) -> Inventory:
    """Return a stack whose nodes name their own system; an administrator makes its MachineConfigs."""
    declared = replace(stack(registry=registry), openshift=OpenShiftSection(machine_config=False))
    return replace(declared, pools={name: replace(pool, os=None) for name, pool in declared.pools.items()})


def test_an_update_of_openshift_needs_a_driver_image(world: World) -> None:
    """The nodes run now, and would stay without a driver after their reboot."""
    world.nodes, world.openshift, world.lacking = (COREOS,), UPDATING, "rhcos4.18"
    found = judged(on_coreos())
    assert codes(found) == [("GP427", "Node t4-1")]
    assert not found.failed
    assert found.findings[0].evidence == f"{NEXT}: answer of the registry"
    assert world.asked[-1] == (NEXT, "amd64")


def test_a_paused_pool_needs_a_driver_image_after_the_update(world: World) -> None:
    """Its nodes boot the release once it goes on. ClusterVersion shows no update any more."""
    pool = MachinePool(name="gpu", nodes=("t4-1",), paused=True, rendered="gpu-1", wanted="gpu-2")
    rendered = {name: RenderedConfig(os_image=f"os:{name}") for name in ("gpu-1", "gpu-2")}
    world.nodes = (replace(COREOS, annotations={CURRENT_CONFIG: "gpu-1"}),)
    world.openshift = replace(UPDATING, version="4.18.1", update="", pools=(pool,), rendered=rendered)
    world.lacking = "rhcos4.18"
    found = judged(on_coreos())
    assert codes(found) == [("GP427", "Node t4-1")]
    assert found.findings[0].fix.endswith("keep gpu paused")
    world.openshift = replace(world.openshift, rendered={})
    assert codes(judged(on_coreos())) == []


@pytest.mark.parametrize("lacking", ["", "rhcos4.17"])
def test_an_update_with_its_driver_image_is_no_finding(world: World, lacking: str) -> None:
    world.nodes, world.openshift, world.lacking = (COREOS,), UPDATING, lacking
    assert codes(judged(on_coreos())) == ([("GP661", "t4-1")] if lacking else [])


def test_no_registry_is_asked_about_an_update_if_none_may_be(world: World) -> None:
    world.nodes, world.openshift, world.lacking = (COREOS,), UPDATING, "rhcos4.18"
    assert codes(judged(on_coreos(registry=False))) == []
    assert world.asked == []
