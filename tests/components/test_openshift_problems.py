"""What a plan says of OpenShift: the wrong platform, releases without a Driver Toolkit, updates of the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision import components
from gpu_provision.components.openshift_problems import next_system
from gpu_provision.model.findings import Finding
from gpu_provision.model.openshift import CURRENT_CONFIG, MachinePool, RenderedConfig
from tests.components import builders

OLD, NEW = "418.94.202503121207-0", "9.6.20250701-0"
COREOS = {"os": "rhcos4.18", "ostree": OLD}
ON_COREOS = {"t4-1": COREOS, "t4-2": COREOS, "h100-1": COREOS}
TOOLKITS = {OLD: "dtk@sha256:18"}
CODES = {"GP424", "GP425", "GP426", "GP427", "GP439"}


def found(
    inventory: dict[str, Any] | None = None, nodes: dict[str, Any] | None = None, **openshift: Any
) -> list[Finding]:
    """Return the findings of a cluster that is OpenShift if facts of it are given."""
    case = {"nodes": ON_COREOS if nodes is None else nodes, "cluster": {"openshift": openshift} if openshift else {}}
    facts = builders.observed_facts(case)
    context = builders.context(builders.inventory_with(inventory or {}), facts)
    return [each for each in components.problems(context) if each.code in CODES]


def test_a_cluster_with_all_toolkits_has_no_finding() -> None:
    assert found(version="4.18.9", driver_toolkits=TOOLKITS) == []


@pytest.mark.parametrize(
    ("inventory", "is_openshift", "where", "severity"),
    [
        ({"cluster": {"platform": "openshift"}}, False, "cluster.platform", "error"),
        ({"cluster": {"platform": "openshift"}, "openshift": {}}, False, "cluster.platform", "error"),
        ({"openshift": {"use_ocp_driver_toolkit": True}}, False, "openshift", "warning"),
        ({"cluster": {"platform": "kubernetes"}}, True, "cluster.platform", "error"),
    ],
)
def test_another_platform_is_one_finding(
    inventory: dict[str, Any], where: str, severity: str, *, is_openshift: bool
) -> None:
    facts = {"version": "4.18.9", "driver_toolkits": TOOLKITS} if is_openshift else {}
    (finding,) = found(inventory, None if is_openshift else {}, **facts)
    assert (finding.code, finding.where, finding.severity) == ("GP424", where, severity)
    assert ("does not serve" in finding.evidence) is not is_openshift
    assert finding.fix.startswith(f"remove {'the section ' if where == 'openshift' else ''}{where}; or check")


def test_a_platform_that_is_right_is_no_finding() -> None:
    assert found({"cluster": {"platform": "kubernetes"}}, {}) == []
    assert (
        found({"cluster": {"platform": "openshift"}, "openshift": {}}, version="4.18.9", driver_toolkits=TOOLKITS) == []
    )


@pytest.mark.parametrize(
    ("tags", "evidence"), [({"latest": "dtk"}, "has the tags latest"), ({}, "has no tags, or does not exist")]
)
def test_a_release_without_toolkit_is_one_finding(tags: dict[str, str], evidence: str) -> None:
    (finding,) = found(version="4.18.9", driver_toolkits=tags)
    assert (finding.code, finding.severity) == ("GP425", "error")
    assert finding.what == f"there is no Driver Toolkit image for release {OLD} of h100-1, t4-1, t4-2"
    assert evidence in finding.evidence
    assert f"driver-toolkit:{OLD}" in finding.fix


def test_each_release_without_toolkit_is_named() -> None:
    nodes = {**ON_COREOS, "h100-1": {"os": "rhel9.6", "ostree": NEW}}
    (finding,) = found(nodes=nodes, version="4.19.1", driver_toolkits=TOOLKITS)
    assert (finding.code, finding.where) == ("GP425", "Node h100-1")
    assert [each.code for each in found(nodes=nodes, version="4.19.1")] == ["GP425", "GP425"]


def test_arguments_that_the_toolkit_drops_are_one_warning_per_pool() -> None:
    dropped = {"driver": {"args": ["--max-threads=2"]}, "gds": {"enabled": True, "args": ["-v"]}}
    first, second = found(dropped, version="4.18.9", driver_toolkits=TOOLKITS)
    assert (first.code, first.where, first.severity) == ("GP439", "pools.h100", "warning")
    assert first.what.startswith("driver.args, gds.args of the pool h100 have no effect")
    assert second.where == "pools.t4"
    by_hand = {**dropped, "openshift": {"use_ocp_driver_toolkit": False}}
    assert found(by_hand, version="4.18.9", driver_toolkits=TOOLKITS) == []
    off = {"gds": {"enabled": False, "args": ["-v"]}}
    assert found(off, version="4.18.9", driver_toolkits=TOOLKITS) == []


def test_nodes_that_need_no_toolkit_have_no_finding() -> None:
    """Drivers of the host, precompiled ones, RHEL, and the way without a Driver Toolkit."""
    assert found({"driver": {"enabled": False}}, version="4.18.9") == []
    assert found({"driver": {"version": "580", "use_precompiled": True}}, version="4.18.9") == []
    assert found({"openshift": {"use_ocp_driver_toolkit": False}}, version="4.18.9") == []
    assert found(nodes={key: {"os": "rhel8.10"} for key in ON_COREOS}, version="4.18.9") == []


def test_an_unknown_release_is_one_finding() -> None:
    nodes = {key: {"os": "rhcos4.18"} for key in ON_COREOS}
    (finding,) = found(nodes=nodes, version="4.18.9", driver_toolkits=TOOLKITS)
    assert (finding.code, finding.severity) == ("GP426", "error")
    assert finding.what.endswith("is not known, so there is no Driver Toolkit for it")


def test_offline_the_release_is_unknown() -> None:
    pools = {name: {"os": "rhcos4.18"} for name in ("t4", "h100")}
    chosen = builders.inventory_with({"cluster": {"platform": "openshift"}, "pools": pools})
    (finding,) = (each for each in components.problems(builders.context(chosen)) if each.code in CODES)
    assert (finding.code, finding.severity, finding.evidence) == ("GP426", "warning", "no cluster was read")


def test_a_discovery_without_the_label_is_one_finding() -> None:
    """The driver's pods select it. The stack's own discovery sets it."""
    facts = {"version": "4.18.9", "driver_toolkits": TOOLKITS}
    other = {"nfd": {"enabled": False}}
    (finding,) = found(other, **facts)
    assert (finding.code, finding.severity) == ("GP426", "error")
    assert "sets no label" in finding.evidence
    label = {"feature.node.kubernetes.io/system-os_release.OSTREE_VERSION": OLD}
    assert found(other, {key: {"os": "rhcos4.18", "labels": label} for key in ON_COREOS}, **facts) == []


UPDATING = {"version": "4.18.9", "update": "4.19.2", "driver_toolkits": {**TOOLKITS, "417.94.202410090854-0": "old"}}


def test_an_update_without_its_toolkit_is_one_warning() -> None:
    pools = (MachinePool(name="gpu", nodes=("h100-1", "t4-1", "t4-2")),)
    (finding,) = found(**UPDATING, pools=pools)
    assert (finding.code, finding.severity) == ("GP427", "warning")
    assert finding.what == "the cluster is updating to 4.19.2, for which h100-1, t4-1, t4-2 may have no driver"
    assert "pause gpu: oc patch machineconfigpool" in finding.fix


@pytest.mark.parametrize(
    "changes",
    [{"update": ""}, {"driver_toolkits": {**TOOLKITS, NEW: "dtk@sha256:19"}}],
    ids=["no update", "its toolkit is there"],
)
def test_an_update_with_its_toolkit_is_no_finding(changes: dict[str, Any]) -> None:
    assert found(**UPDATING | changes) == []


def test_an_update_that_half_of_the_nodes_have_is_no_finding() -> None:
    nodes = {**ON_COREOS, "h100-1": {"os": "rhel9.6", "ostree": NEW}}
    assert found(nodes=nodes, **UPDATING | {"driver_toolkits": {**TOOLKITS, NEW: "dtk@sha256:19"}}) == []


LATER = "418.94.202509100653-0"


def pool(name: str, *nodes: str, paused: bool = True) -> MachinePool:
    return MachinePool(name=name, nodes=nodes, paused=paused, rendered=f"{name}-1", wanted=f"{name}-2")


def behind(*tags: str, **changes: Any) -> list[Finding]:
    """Return the findings after an update, of pools whose nodes have yet to boot another image of CoreOS."""
    pools = (pool("gpu", "t4-1", "t4-2"), pool("big", "h100-1", paused=False))
    images = {"gpu-1": "os:1", "gpu-2": "os:3", "big-1": "os:2", "big-2": "os:3"} | changes.pop("images", {})
    rendered = {name: RenderedConfig(os_image=image) for name, image in images.items()}
    current = {"t4-1": "gpu-1", "t4-2": "gpu-1", "h100-1": "big-1"} | changes.pop("current", {})
    releases = {"t4-1": OLD, "t4-2": OLD, "h100-1": LATER}
    nodes: dict[str, Any] = {
        name: {"os": "rhcos4.18", "ostree": release, "annotations": {CURRENT_CONFIG: current[name]}}
        for name, release in releases.items()
    }
    toolkits = dict.fromkeys((OLD, LATER, *tags), "dtk")
    facts: dict[str, Any] = {
        "version": "4.18.30",
        "driver_toolkits": toolkits,
        "pools": pools,
        "rendered": rendered,
        **changes,
    }
    return found(nodes=nodes, **facts)


def test_nodes_that_an_update_has_yet_to_reach_are_one_warning() -> None:
    """ClusterVersion is Completed, and their pools are not. The tag of the first pool's next release may be there."""
    (finding,) = behind()
    assert (finding.code, finding.where, finding.severity) == ("GP427", "Node h100-1", "warning")
    assert finding.what == "h100-1 will boot CoreOS of 4.18.30, for which there may be no driver"
    assert "pause big: oc patch machineconfigpool" in finding.fix
    (finding,) = behind(driver_toolkits=dict.fromkeys((OLD,), "dtk"), images={"big-2": "os:2"})[-1:]
    assert (finding.code, finding.where) == ("GP427", "Nodes t4-1, t4-2")
    assert finding.fix.endswith("; until then, keep gpu paused")


@pytest.mark.parametrize(
    "changes",
    [
        {"images": {"gpu-2": "os:1", "big-2": "os:2"}},
        {"images": {"gpu-2": "", "big-2": ""}},
        {"images": {"gpu-1": "", "big-1": ""}},
        {"rendered": {}},
        {"current": {"h100-1": "", "t4-1": "", "t4-2": ""}},
        {"pools": ()},
    ],
    ids=["the same image", "no image wanted", "no image known", "not read", "not configured yet", "no pools"],
)
def test_nodes_that_boot_no_other_coreos_have_no_finding(changes: dict[str, Any]) -> None:
    assert behind(**changes) == []
    assert behind("418.94.202511010000-0") == []


def test_an_update_under_precompiled_drivers_is_one_warning() -> None:
    (finding,) = found({"driver": {"version": "580", "use_precompiled": True}}, **UPDATING)
    assert finding.code == "GP427"
    assert "precompiled" in finding.evidence


@pytest.mark.parametrize(
    ("os", "update", "tag"),
    [
        ("rhcos4.17", "4.18.9", "rhcos4.18"),
        ("rhcos4.18", "4.19.2", "rhel9"),
        ("rhcos4.18", "4.18.10", ""),
        ("rhel9.6", "4.20.1", ""),
        ("rhcos4.18", "", ""),
        ("rhcos4.18", "nightly", ""),
    ],
)
def test_the_system_after_an_update(os: str, update: str, tag: str) -> None:
    nodes = {key: {"os": os, "ostree": OLD} for key in ON_COREOS}
    facts = builders.observed_facts({"nodes": nodes, "cluster": {"openshift": {"update": update}}})
    context = builders.context(facts=facts)
    assert context.openshift
    following = next_system(context.targets[0], context.openshift)
    assert (following.tag if following else "") == tag
