"""Rules of MachineConfigs whose every case would be slow to bring about in a cluster."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import pytest

from gpu_provision.sandbox.machine_config import (
    CURRENT,
    DESIRED,
    STATE,
    RenderError,
    primary_pool,
    read_effects,
    read_file,
    render,
    select_configs,
)
from gpu_provision.sandbox.openshift.machine_config_operator import choose_candidates, pool_status
from gpu_provision.sandbox.openshift_releases import RELEASES, later_releases, release_of_os, release_of_toolkit
from tests.sandbox.openshift.conftest import NEW, NEXT, OLD, machine_config

ROLES = ("master", "worker", "gpu", "infra")
Object = dict[str, Any]


def pool(name: str, *, roles: tuple[str, ...] = (), **spec: Any) -> Object:
    role = "machineconfiguration.openshift.io/role"
    selector = {"matchExpressions": [{"key": role, "operator": "In", "values": [*(roles or (name,))]}]}
    spec = {"machineConfigSelector": selector, **spec}
    nodes = {"matchLabels": {f"node-role.kubernetes.io/{name}": ""}}
    kind = {"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool"}
    return {**kind, "metadata": {"name": name, "uid": name}, "spec": {"nodeSelector": nodes, **spec}}


def node(name: str, *roles: str, config: str = "old", state: str = "Done", ready: bool = True, **more: Any) -> Object:
    annotations = {CURRENT: config, DESIRED: more.get("desired", config), STATE: state}
    labels = {f"node-role.kubernetes.io/{role}": "" for role in roles}
    metadata = {"name": name, "labels": labels, "annotations": annotations, "creationTimestamp": more.get("born", "1")}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"metadata": metadata, "spec": {"unschedulable": more.get("cordoned")}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("roles", "chosen"),
    [
        (("worker",), "worker"),
        (("master", "worker"), "master"),
        (("worker", "gpu"), "gpu"),
        (("gpu",), "gpu"),
        (("master", "gpu"), "master"),
        ((), None),
    ],
)
def test_a_node_is_in_one_pool(roles: tuple[str, ...], chosen: str | None) -> None:
    found = primary_pool(node("a", *roles), map(pool, ROLES))
    assert (found and found["metadata"]["name"]) == chosen


def test_two_custom_roles_are_an_error() -> None:
    with pytest.raises(RenderError, match="node a belongs to 2 custom roles, cannot proceed with this Node"):
        primary_pool(node("a", "worker", "gpu", "infra"), map(pool, ROLES))


def test_configurations_merge_in_order() -> None:
    """Those of ``worker`` come first, then by name; of a file the last one stays, arguments add up."""
    configs = [
        machine_config("10-gpu", role="gpu", files={"/etc/a": "custom"}, kernelArguments=["c"]),
        machine_config("99-worker", files={"/etc/a": "last", "/etc/b": "b"}, kernelArguments=["b"]),
        machine_config("00-worker", files={"/etc/a": "first"}, kernelArguments=["a"], osImageURL="image"),
        machine_config("00-infra", role="infra", kernelArguments=["no"]),
    ]
    custom = pool("gpu", roles=("worker", "gpu"))
    sources = select_configs(custom, configs)
    assert [source["metadata"]["name"] for source in sources] == ["00-worker", "99-worker", "10-gpu"]
    rendered = render(custom, sources, "4.18")
    assert rendered["metadata"]["name"].startswith("rendered-gpu-")
    assert rendered["spec"]["kernelArguments"] == ["a", "b", "c"]
    assert rendered["spec"]["osImageURL"] == "image"
    files = {each["path"]: read_file(each) for each in rendered["spec"]["config"]["storage"]["files"]}
    assert files == {"/etc/a": "custom", "/etc/b": "b"}
    assert select_configs(custom, [*configs, {**rendered, "metadata": {**rendered["metadata"], **sources[0]["metadata"],
        "ownerReferences": rendered["metadata"]["ownerReferences"]}}]) == sources  # fmt: skip
    assert render(custom, sources, "4.19")["metadata"]["name"] == rendered["metadata"]["name"]
    assert render(custom, sources[:2], "4.18")["metadata"]["name"] != rendered["metadata"]["name"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"ignition": {"version": "2.0.0"}}, "parsing Ignition config failed: unknown version"),
        ({"storage": {"files": []}}, "parsing Ignition config failed: unknown version"),
        ({"ignition": {"version": "3.2.0"}, "storage": {"files": [{"path": "etc/a"}]}}, "path not absolute"),
        (
            {"ignition": {"version": "3.2.0"}, "storage": {"files": [{"path": "/a", "contents": {"source": "text"}}]}},
            "invalid url",
        ),
    ],
)
def test_what_ignition_cannot_read_is_not_rendered(config: Object, says: str) -> None:
    broken = machine_config("50-mine") | {"spec": {"config": config}}
    with pytest.raises(RenderError, match=f"{says}.*: 50-mine"):
        render(pool("worker"), [broken], "4.18")


def test_a_pool_without_configurations_is_not_rendered() -> None:
    with pytest.raises(RenderError, match="no MachineConfigs found matching selector"):
        render(pool("worker"), [], "4.18")


def test_files_are_data_urls() -> None:
    packed = base64.b64encode(gzip.compress(b"i2c_core\n")).decode()
    for contents in (
        {"source": "data:,i2c_core%0A"},
        {"source": f"data:text/plain;charset=utf-8;base64,{base64.b64encode(b'i2c_core' + bytes([10])).decode()}"},
        {"source": f"data:;base64,{packed}", "compression": "gzip"},
    ):
        assert read_file({"contents": contents}) == "i2c_core\n"
    assert not read_file({})


def test_effects_of_a_configuration() -> None:
    """Modules that it loads and those that it keeps away, by a file or by the kernel's command line."""
    files = {
        "/etc/modules-load.d/gpu.conf": "%23 ours%0Ai2c_core%0A",
        "/etc/modprobe.d/no.conf": "blacklist nouveau%0Ainstall nova_core /bin/false%0Aoptions x y=1%0A",
        "/etc/modules": "not_this",
    }
    config = machine_config("a", files=files, kernelArguments=["quiet", "modprobe.blacklist=nova_drm,x"])
    effects = read_effects(render(pool("worker"), [config], "4.18"))
    assert effects.loaded_modules == ["i2c_core"]
    assert effects.blocked_modules == ["nouveau", "nova_core", "nova_drm", "x"]


@pytest.mark.parametrize(
    ("nodes", "most", "chosen"),
    [
        ([node("b", born="2"), node("a", born="3"), node("c", born="1")], 1, ["c"]),
        ([node("a"), node("b"), node("c")], 2, ["a", "b"]),
        ([node("a", cordoned=True), node("b")], 1, []),
        ([node("a", cordoned=True), node("b")], 2, ["b"]),
        ([node("a", ready=False), node("b")], 1, []),
        ([node("a", desired="new", state="Working"), node("b")], 1, []),
        ([node("a", desired="new", state="Degraded"), node("b")], 1, []),
        ([node("a", desired="bad", state="Degraded"), node("b", config="new")], 1, ["a"]),
        ([node("a", config="new"), node("b")], 1, ["b"]),
        ([node("a", config="new"), node("b", config="new")], 1, []),
    ],
)
def test_who_may_begin_an_update(nodes: list[Object], most: int, chosen: list[str]) -> None:
    """At most so many are away; cordoned, unready, working and degraded nodes count; the oldest goes first."""
    assert [each["metadata"]["name"] for each in choose_candidates(nodes, "new", most)] == chosen


def conditions(status: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in status["conditions"]}


def test_the_status_of_a_pool() -> None:
    target = {"name": "new", "source": [{"name": "00-worker"}]}
    before = {"configuration": {"name": "old"}}
    live = {**pool("worker", configuration=target), "status": before}
    some = pool_status(live, [node("a", config="new"), node("b", desired="new", state="Working", cordoned=True)])
    assert conditions(some) == {"Updated": "False", "Updating": "True", "NodeDegraded": "False", "Degraded": "False"}
    counts = ("machineCount", "updatedMachineCount", "readyMachineCount", "unavailableMachineCount")
    assert [some[key] for key in counts] == [2, 1, 1, 1]
    assert some["configuration"]["name"] == "old"
    done = pool_status(live, [node("a", config="new"), node("b", config="new")])
    assert conditions(done)["Updated"] == "True"
    assert done["configuration"] == target
    paused = pool_status({**live, "spec": {**live["spec"], "paused": True}}, [node("a")])
    assert conditions(paused)["Updating"] == "False"
    said = next(each for each in paused["conditions"] if each["type"] == "Updating")
    assert said["message"] == "Pool is paused; will not update to MachineConfig new"


def test_a_degraded_node_degrades_its_pool() -> None:
    failed = node("a", desired="new", state="Degraded")
    failed["metadata"]["annotations"]["machineconfiguration.openshift.io/reason"] = "disk full"
    status = pool_status(pool("worker", configuration={"name": "new"}), [failed, node("b")])
    found = {each["type"]: each for each in status["conditions"]}
    assert {kind: found[kind]["status"] for kind in ("NodeDegraded", "Degraded", "Updating")} == {
        "NodeDegraded": "True",
        "Degraded": "True",
        "Updating": "True",
    }
    assert found["NodeDegraded"]["reason"] == "1 nodes are reporting degraded status on sync"
    assert found["NodeDegraded"]["message"] == 'Node a is reporting: "disk full"'
    assert status["degradedMachineCount"] == 1


def test_releases_have_images_of_their_own() -> None:
    """RHCOS is called rhel from 4.19 on; kernel and build change with each release."""
    assert (OLD.os, NEXT.os) == ("rhcos4.18", "rhel9.6")
    assert NEXT.os_image == "Red Hat Enterprise Linux CoreOS 9.6.20250925-0 (Plow)"
    assert later_releases(OLD.version) == [NEW, NEXT]
    for release in RELEASES.values():
        assert release_of_os(release.os_image_url) == release_of_toolkit(release.toolkit_image) == release
    assert len({each.kernel for each in RELEASES.values()}) == len(RELEASES)
    assert OLD.kernel_on("arm64").endswith(".aarch64")
