"""Public operations and facts in a deploy file of its own: no inventory of gpu-provision, no other operation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.deploys.conftest import Pyinfra

DEPLOY = """
from pyinfra import host

from gpu_provision.host_facts import GpuFacts
from gpu_provision.operations import kernel_modules, nouveau, packages_held, runtime_imports

facts = host.get_fact(GpuFacts)
if facts.gpus:
    kernel_modules(name="IPMI", modules=["ipmi-msghandler"], _sudo=True)
    nouveau(name="No nouveau", _sudo=True)
    packages_held(name="Kernel and driver stay", _sudo=True)
    runtime_imports(name="Drop-ins", pattern="/etc/containerd/site.d/*.toml", _sudo=True)
"""
NAMES = ("IPMI", "No nouveau", "Kernel and driver stay", "Drop-ins")


@pytest.fixture
def alone(pyinfra: Pyinfra, tmp_path: Path) -> Pyinfra:
    (tmp_path / "alone.py").write_text(DEPLOY)
    (tmp_path / "hosts.py").write_text('hosts = [("@sandbox/driver-1", {"sandbox_fleet": "mine.yaml"})]\n')
    return lambda option: pyinfra("driver-1", option, command=("alone.py",), inventory="hosts.py")


def results(output: str, name: str) -> list[tuple[str, ...]]:
    """Return the figures of an operation in pyinfra's last table: hosts, success, error, no change."""
    return re.findall(rf"^\s+{name}\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s*$", output, re.MULTILINE)


def test_operations_change_a_host_once(alone: Pyinfra, sandbox: Path) -> None:
    """The plan names what the first run changes and writes nothing; the second run has nothing to do."""
    root = sandbox / "driver-1"
    plan = alone("--dry")
    assert plan.returncode == 0, plan.stdout
    assert [name for name in NAMES if re.search(rf"{name}\s+1 \(@sandbox/driver-1\)", plan.stdout)] == list(NAMES)
    assert not (root / "etc/modules-load.d/gpu-provision.conf").exists()
    first, second = alone("-y").stdout, alone("-y").stdout
    assert [results(first, name) for name in NAMES] == [[("1", "1", "-", "-")]] * 4
    assert [results(second, name) for name in NAMES] == [[("1", "-", "-", "1")]] * 4
    assert "ipmi_msghandler" in (root / "etc/modules-load.d/gpu-provision.conf").read_text()
    assert "/etc/containerd/site.d/*.toml" in (root / "etc/containerd/config.toml").read_text()


def test_fact_is_printed_as_json(pyinfra: Pyinfra) -> None:
    fact = "gpu_provision.host_facts.GpuFacts"
    ran = pyinfra("driver-1", "--json", "--limit", "@sandbox/driver-1", command=("fact", fact))
    assert ran.returncode == 0, ran.stdout
    (document,) = (line for line in ran.stdout.splitlines() if line.startswith("{"))
    seen = json.loads(document)[fact]["@sandbox/driver-1"]
    assert seen["kernel"] == "5.15.0-122-generic"
    assert [gpu["device"] for gpu in seen["gpus"]] == ["1eb8"]
    assert seen["driver"]["loaded"] == "535.183.01"
    assert seen["nouveau_loaded"] is False
    assert [runtime["kind"] for runtime in seen["runtimes"]] == ["containerd"]
