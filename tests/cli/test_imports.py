"""``gpu-provision import`` prints an inventory, and names what it does not carry over."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import yaml

from gpu_provision.adopt import discovery
from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.inventory import check
from gpu_provision.inventory.document import MAX_BYTES
from gpu_provision.kube import client
from tests.adopt.builders import operator_install, policy
from tests.cli.harness import Run

LOST = "driver: {version: 580.126.20, livenessProbe: {periodSeconds: 3}}\n"


@pytest.fixture
def values(tmp_path: Path) -> Path:
    file = tmp_path / "values.yaml"
    file.write_text(LOST, encoding="utf-8")
    return file


def with_cluster(monkeypatch: pytest.MonkeyPatch, install: OperatorInstall) -> None:
    monkeypatch.setattr(client, "connect", lambda *_: None)
    monkeypatch.setattr(discovery, "discover", lambda *_: install)


def test_stdout_is_the_inventory_and_stderr_the_rest(run: Run, values: Path, tmp_path: Path) -> None:
    ran = run("import", values, "--name", "prod", "--namespace", "nvidia", "--context", "c")
    file = tmp_path / "gpu.yaml"
    file.write_text(ran.out, encoding="utf-8")
    made = yaml.safe_load(ran.out)
    assert (ran.code, check(file).errors) == (0, ())
    assert (made["name"], made["driver"]) == ("prod", {"version": "580.126.20"})
    assert made["cluster"] == {"context": "c", "namespace": "nvidia"}
    assert f"GP368 {values}:1 driver.livenessProbe.periodSeconds" in ran.err


def test_a_script_learns_what_is_lost_by_the_exit_code(run: Run, values: Path) -> None:
    assert run("import", values, "--detailed-exitcode").code == 2
    values.write_text("driver: {version: 580.126.20}\n", encoding="utf-8")
    assert run("import", values, "--detailed-exitcode").code == 0


def test_its_document_has_the_inventory_and_the_findings(run: Run, values: Path) -> None:
    ran = run("import", "--json", values)
    assert ran.document["imported"]["driver"] == {"version": "580.126.20"}
    assert ran.document["warnings"][0]["where"] == f"{values}:1 driver.livenessProbe.periodSeconds"
    assert ran.err == ""


def test_a_new_file_is_written_and_no_other_one(run: Run, values: Path, tmp_path: Path) -> None:
    """The stack has the file's name, unless another is given."""
    file = tmp_path / "prod.yaml"
    ran = run("import", values, "--inventory-out", file)
    assert (ran.code, "prod.yaml" in ran.out) == (0, True)
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["name"] == "prod"
    before = file.read_text(encoding="utf-8")
    assert run("import", values, "--inventory-out", file).code == 64
    assert file.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["missing.yaml"], (65, "GP101 missing.yaml")),
        (["/dev/null"], (65, "GP102 /dev/null")),
        (["values.yaml", "--release", "1.0.0"], (64, "GP002 --release 1.0.0")),
        (["values.yaml", "--name", "No Name"], (1, "the inventory:2 name")),
        (["values.yaml", "--inventory-out", "/dev/null/x"], (64, "GP007")),
    ],
)
def test_a_mistake_is_one_finding(
    run: Run, values: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: tuple[int, str]
) -> None:
    monkeypatch.chdir(values.parent)
    ran = run("import", *words)
    assert ran.code == expected[0]
    assert expected[1] in ran.err


def test_the_nodes_are_those_of_the_cluster(run: Run, values: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the settings of the files, also if the cluster has a ClusterPolicy."""
    with_cluster(monkeypatch, operator_install(policies=(policy(driver={"version": "570.211.01"}),)))
    made = yaml.safe_load(run("import", values, "--cluster").out)
    assert (made["driver"]["version"], made["nodes"]) == ("580.126.20", [{"name": "gpu-1", "pool": "t4"}])


def test_without_a_file_the_settings_are_the_clusters(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As adopt writes them; a cluster without a ClusterPolicy has none."""
    set_by_user = policy(driver={"version": "570.211.01"}, psp={"enabled": True})
    with_cluster(monkeypatch, operator_install(policies=(set_by_user,)))
    ran = run("import")
    assert yaml.safe_load(ran.out)["driver"] == {"version": "570.211.01"}
    assert "GP368 ClusterPolicy cluster-policy spec.psp.enabled" in ran.err
    with_cluster(monkeypatch, operator_install(policies=()))
    assert run("import").code == 1


def test_standard_input_is_a_file_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the output of helm get values; its findings say where it comes from."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LOST.encode())))
    ran = run("import", "-")
    assert yaml.safe_load(ran.out)["driver"] == {"version": "580.126.20"}
    assert "GP368 standard input:1 driver.livenessProbe.periodSeconds" in ran.err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"#" * (MAX_BYTES + 1))))
    assert run("import", "-").code == 65


def test_control_characters_of_a_file_reach_no_terminal(run: Run, values: Path) -> None:
    values.write_text('driver: {version: "\\e[31m", "\\a": x}\n', encoding="utf-8")
    ran = run("import", values)
    assert not set("\x07\x1b") & set(ran.out + ran.err)
