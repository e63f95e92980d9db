"""`import_settings` returns what the command prints, for programs that write inventories."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import gpu_provision
from gpu_provision import InvalidInventoryError, RunFailedError, UsageError
from gpu_provision.adopt import discovery
from gpu_provision.kube import client
from tests.adopt.builders import operator_install, policy

LOST = "toolkit: {enabled: true}\ndriver: {version: 580.126.20, livenessProbe: {periodSeconds: 3}}\n"


@pytest.fixture
def values(tmp_path: Path) -> Path:
    file = tmp_path / "values.yaml"
    file.write_text(LOST, encoding="utf-8")
    return file


def test_an_import_is_an_inventory_and_what_it_lacks(values: Path) -> None:
    """Each setting that is not carried over has its line and the reason."""
    made = gpu_provision.import_settings(values, name="prod", namespace="nvidia", context="c")
    assert (made.data["name"], made.data["driver"]) == ("prod", {"version": "580.126.20"})
    assert made.data["cluster"] == {"context": "c", "namespace": "nvidia"}
    (lost,) = made.not_carried_over
    assert lost.where == f"{values}:2 driver.livenessProbe.periodSeconds"
    assert "no such probe" in lost.what
    assert made.problems == made.source_warnings == ()


def test_its_text_is_a_valid_inventory(values: Path, tmp_path: Path) -> None:
    made = gpu_provision.import_settings([values])
    file = tmp_path / "gpu.yaml"
    file.write_text(made.yaml, encoding="utf-8")
    assert gpu_provision.load(file).name == "gpu"
    assert yaml.safe_load(str(made)) == made.data == made.document()["imported"]


def test_without_a_file_the_settings_are_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "connect", lambda *_: None)
    found = operator_install(policies=(policy(driver={"version": "570.211.01"}),))
    monkeypatch.setattr(discovery, "discover", lambda *_: found)
    assert gpu_provision.import_settings().data["driver"] == {"version": "570.211.01"}
    monkeypatch.setattr(discovery, "discover", lambda *_: operator_install(policies=()))
    with pytest.raises(RunFailedError):
        gpu_provision.import_settings()


def test_problems_of_the_inventory_are_no_exception(values: Path) -> None:
    """The result shows what to change."""
    (problem,) = gpu_provision.import_settings(values, name="No Name").problems
    assert problem.where.startswith("the inventory:2")


def test_a_mistake_of_the_caller_is_an_exception(values: Path) -> None:
    with pytest.raises(UsageError, match="--release 1"):
        gpu_provision.import_settings(values, release="1")
    with pytest.raises(InvalidInventoryError):
        gpu_provision.import_settings(values.with_name("missing.yaml"))
