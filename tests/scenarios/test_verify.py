"""`gpu-provision verify`: all checks pass after a run, and what is damaged by hand fails exactly its own."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gpu_provision.sandbox import hosts
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.world import OPERANDS, World

RECORD = ("configmap", "sandbox-validations", "-n", OPERANDS)


def not_passed(world: World, *arguments: str) -> list[tuple[str, str]]:
    """Return (check, node) of every check that failed."""
    document = world.cli("verify", "-i", str(world.inventory), "--json", *arguments).document
    return [(each["check"], each["node"]) for each in document["checks"] if each["outcome"] == "failed"]


@pytest.fixture(scope="module")
def applied(sandbox: SandboxWorld) -> SandboxWorld:
    assert not hosts.isolation_problem(), hosts.isolation_problem()
    sandbox.apply(check=True)
    return sandbox


def test_everything_passes_after_a_run(applied: SandboxWorld, tmp_path: Path) -> None:
    """On every host and node; what cannot be tested here is skipped with its reason."""
    done = applied.cli("verify", "-i", str(applied.inventory), "--junit", str(tmp_path / "junit.xml"))
    assert done.code == 0, done.text
    suite = ET.parse(tmp_path / "junit.xml").getroot()[0]  # noqa: S314 - our own file
    assert {suite.get(key) for key in ("failures", "errors")} == {"0"}
    named = {each.get("value") for each in suite.iter("property")}
    assert named == {"t4-1", "t4-2", "h100-1", "cpu-1", "control-1"}
    skipped = [case.get("name", "") for case in suite if case.find("skipped") is not None]
    assert {name.partition("[")[0] for name in skipped} <= {"test_dcgm_exporter_answers_for_every_gpu"}


def test_nothing_is_written(applied: SandboxWorld) -> None:
    before = len(applied.writes())
    not_passed(applied)
    assert len(applied.writes()) == before


def test_damage_of_a_host_fails_its_check_alone(applied: SandboxWorld) -> None:
    """Each check's own damage: tests/verify/damage.yaml."""
    host = hosts.SimulatedHost("t4-2", Path(applied.environment["GPU_PROVISION_SANDBOX_DIR"]) / "fleet/hosts/t4-2")
    hosts.run(host, "touch /run/reboot-required").check_returncode()
    assert not_passed(applied) == [("no reboot is pending", "t4-2")]
    hosts.run(host, "rm /run/reboot-required").check_returncode()


def test_validation_that_is_on_no_record_fails_its_check_alone(applied: SandboxWorld) -> None:
    """Its pod went with the run, so that nothing tells whether it ever passed."""
    applied.api.patch(*RECORD, patch={"data": {"t4-1": None}})
    assert not_passed(applied) == [("vector add has passed on a gpu that kubernetes granted", "t4-1")]


def test_label_that_was_taken_fails_its_check_alone(applied: SandboxWorld) -> None:
    applied.api.label("node", "h100-1", labels={"gpu-provision.io/inventory": None})
    assert not_passed(applied, "--limit", "h100-1") == [("the node carries the labels of its pool", "h100-1")]
    applied.api.label("node", "h100-1", labels={"gpu-provision.io/inventory": "sandbox"})


def test_content_that_was_not_applied_yet_has_not_passed(applied: SandboxWorld) -> None:
    """The inventory names another version than what runs: nothing was validated with it."""
    applied.edit(lambda text: text.replace("version: v0.20.0", "version: v0.19.3"))
    assert not_passed(applied, "--limit", "t4-2") == [
        ("vector add has passed on a gpu that kubernetes granted", "t4-2")
    ]
    applied.edit(lambda text: text.replace("version: v0.19.3", "version: v0.20.0"))


def test_node_that_falls_short_fails_on_any_server(world: World) -> None:
    """The same on a real control plane, with the least rights; its simulated hosts have no login."""
    world.apply("--cluster-only", check=True)
    assert not_passed(world, "--cluster-only") == []
    world.settings(pools={"h100": {"os": "ubuntu24.04", "gpu": {"model": "H100", "count": 9}}})
    found = [check for check, node in not_passed(world, "--cluster-only") if node == "h100-1"]
    assert "kubernetes offers the declared gpus" in found
