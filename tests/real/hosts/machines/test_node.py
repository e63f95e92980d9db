"""A virtual machine that is also a node of a real control plane: the host phase over SSH, then the cluster phase.

The tests go on from one another in their order. kubelet, containerd and the pods run under the machine's own systemd,
on cgroups of version 2; the images are stand-ins.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.answers import Answer
from tests.real.hosts import joined, state
from tests.real.hosts.joined import Owner
from tests.real.node.nodes import GPUS
from tests.real.node.settings import NODE
from tests.real.node.user import OPERANDS, init_container

pytestmark = pytest.mark.hosts

ELSEWHERE = "198.51.100.1"  # unused: RFC 5737
IMPORTED = "/etc/containerd/conf.d/*.toml imported in /etc/containerd/config.toml"


@pytest.fixture(scope="module")
def owner(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    if reason := joined.missing():
        pytest.skip(reason)
    with contextlib.ExitStack() as running:
        made = running.enter_context(joined.joined(tmp_path_factory.mktemp("joined"), image))
        yield made


@pytest.fixture(scope="module")
def kubelet(owner: Owner) -> str:
    return _kubelet(owner)


@pytest.fixture(scope="module")
def first_run(owner: Owner, kubelet: str) -> Answer:
    assert kubelet
    said = owner.apply("--json", "--verbose")
    _keep(owner, "first-run", said)
    return said


def _kubelet(owner: Owner) -> str:
    return str(state.of(owner.virtual).service("kubelet").systemd_properties["MainPID"])


def _changes(answer: Answer) -> list[str]:
    (host,) = json.loads(answer.out)["hosts"]
    return list(host["changes"])


def test_the_machine_is_a_node_as_they_are_today(owner: Owner) -> None:
    """Under systemd are kubelet and containerd, cgroups are of version 2, nouveau is there; no way leads out."""
    host = state.of(owner.virtual)
    assert all(host.service(name).is_running for name in ("kubelet", "containerd"))
    assert host.mount_point("/sys/fs/cgroup").filesystem == "cgroup2"
    assert "nouveau" in state.loaded(host)
    assert owner.run("ip", "route", "get", ELSEWHERE).code != 0
    assert owner.json("node", NODE)["status"]["nodeInfo"]["kernelVersion"] == host.check_output("uname -r")


def test_the_first_run_prepares_the_host_and_validates_gpus(owner: Owner, first_run: Answer) -> None:
    """Without nouveau the driver comes, containerd was restarted for its imports, and both validations passed."""
    assert first_run.code == 0, first_run.text
    assert {"nouveau unloaded", IMPORTED, "containerd restarted"} <= set(_changes(first_run))
    assert "nouveau" not in state.loaded(state.of(owner.virtual))
    assert owner.allocatable() == str(GPUS)
    validated = init_container(owner.pod("nvidia-operator-validator"), "cuda-validation")
    assert "Test PASSED" in validated["message"].splitlines()
    assert "device_plugin_validation" in owner.json("configmap", "-n", OPERANDS, "node-validations")["data"][NODE]


@pytest.mark.usefixtures("first_run")
def test_kubelet_survives_a_restart_of_its_runtime(owner: Owner, kubelet: str) -> None:
    assert _kubelet(owner) == kubelet


@pytest.mark.usefixtures("first_run")
def test_the_second_run_changes_nothing_on_either_side(owner: Owner) -> None:
    host = state.of(owner.virtual)
    files, writes = state.written(host), len(owner.writes())
    second = owner.apply("--json")
    assert second.code == 0, second.text
    assert _changes(second) == []
    assert owner.writes()[writes:] == []
    assert state.written(host) == files


@pytest.mark.usefixtures("first_run")
def test_acceptance_tests_of_host_and_cluster_pass(owner: Owner, tmp_path: Path) -> None:
    said = owner.cli("verify", "-i", str(owner.inventory), "--junit", str(tmp_path / "junit.xml"))
    assert said.code == 0, said.text
    suite = ET.parse(tmp_path / "junit.xml").getroot()[0]  # noqa: S314 - our own file
    counts = {name: int(suite.attrib[name]) for name in ("failures", "errors", "skipped")}
    assert counts == {"failures": 0, "errors": 0, "skipped": 1}, said.text  # no permission to get pods/proxy
    assert int(suite.attrib["tests"]) > 0


@pytest.mark.usefixtures("first_run")
def test_the_kubernetes_api_shows_the_same_host_as_ssh_does(owner: Owner) -> None:
    inventory = owner.without_ssh()
    rights = owner.folder / "more-rights.yaml"
    rights.write_text(owner.cli("rbac", "--user", "gpu-provision", "-i", str(inventory), check=True).out)
    owner.kubectl("apply", "-f", str(rights))
    assert _preflight(owner, inventory) == _preflight(owner, owner.inventory)


def _preflight(owner: Owner, inventory: Path) -> tuple[Any, ...]:
    said = json.loads(owner.cli("preflight", "--json", "-i", str(inventory), check=True).out)
    return [host["gpus"] for host in said["hosts"]], [finding["code"] for finding in said["warnings"]], said["errors"]


@pytest.mark.usefixtures("first_run")
def test_a_run_drains_reboots_and_validates_again(owner: Owner) -> None:
    """When its system asks for a reboot; the run after that changes nothing on either side."""
    before = _boot(owner)
    owner.virtual.run("touch /run/reboot-required")
    third = owner.apply("--json", "--verbose")
    _keep(owner, "reboot", third)
    assert third.code == 0, third.text
    rebooted, evicted = _changes(third)
    assert rebooted == "rebooted: the system itself asks for one (/run/reboot-required)"
    assert "node-feature-discovery-master" in evicted
    assert "nouveau" not in state.loaded(state.of(owner.virtual))
    node = owner.json("node", NODE)
    assert node["status"]["nodeInfo"]["bootID"] == _boot(owner) != before
    assert not node["spec"].get("unschedulable")
    assert owner.allocatable() == str(GPUS)
    writes = len(owner.writes())
    fourth = owner.apply("--json")
    assert fourth.code == 0, fourth.text
    assert _changes(fourth) == []
    assert owner.writes()[writes:] == []


def _boot(owner: Owner) -> str:
    return str(state.of(owner.virtual).check_output("cat /proc/sys/kernel/random/boot_id"))


def _keep(owner: Owner, name: str, answer: Answer) -> None:
    (owner.folder / f"{name}.log").write_text(answer.err + answer.out)
