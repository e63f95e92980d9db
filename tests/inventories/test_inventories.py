"""The inventories that come with the project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.inventory import check, load

ROOT = Path(__file__).parents[2]
INVENTORIES = ROOT / "inventories"


@pytest.mark.parametrize("name", ["sandbox", "prod", "openshift"])
def test_an_inventory_is_valid_and_short(name: str) -> None:
    """Without any finding, on a machine without keys, kubeconfig or network.

    The first line names the schema to editors, relative to the file; everything is declared in the YAML.
    """
    file = INVENTORIES / f"{name}.yaml"
    assert check(file).all == ()
    key, _, path = file.read_text(encoding="utf-8").splitlines()[0].partition("$schema=")
    assert key == "# yaml-language-server: "
    assert json.loads((INVENTORIES / path).read_text(encoding="utf-8"))["title"] == "gpu-provision inventory"
    assert len(list(filter(None, file.with_suffix(".py").read_text(encoding="utf-8").splitlines()))) == 3


def test_the_sandbox_declares_its_default_fleet() -> None:
    """Node for node: name, operating system, model and number of GPUs."""
    fleet = yaml.safe_load((ROOT / "gpu_provision/sandbox/fleets/default.yaml").read_text(encoding="utf-8"))
    machines = {machine["name"]: machine for machine in fleet["nodes"]}
    inventory = load(INVENTORIES / "sandbox.yaml")
    assert [node.name for node in inventory.nodes] == ["t4-1", "t4-2", "h100-1", "cpu-1", "control-1"]
    assert {node.name for node in inventory.nodes} == machines.keys()
    for node in inventory.nodes:
        pool, machine = inventory.pool_of(node), machines[node.name]
        assert pool.os
        assert f"{pool.os.id}{pool.os.version}" == machine.get("os", "ubuntu22.04")
        assert (pool.gpu.count if pool.gpu else 0) == machine.get("gpu", {}).get("count", 0)


def test_the_openshift_inventory_declares_the_gpu_nodes_of_its_fleet() -> None:
    """Without a system: nodes report theirs, and an update of the cluster changes it."""
    fleet = yaml.safe_load((ROOT / "gpu_provision/sandbox/fleets/openshift.yaml").read_text(encoding="utf-8"))
    machines = {machine["name"]: machine["gpu"]["count"] for machine in fleet["nodes"] if "gpu" in machine}
    inventory = load(INVENTORIES / "openshift.yaml")
    pools = {node.name: inventory.pool_of(node) for node in inventory.nodes}
    assert {name: pool.gpu.count if pool.gpu else 0 for name, pool in pools.items()} == machines
    assert not any(pool.os for pool in pools.values())


def debug_inventory(name: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("pyinfra"), f"inventories/{name}.py", "debug-inventory"],
        cwd=ROOT,
        env={**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def hosts(output: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for block in output.split("\n[")[1:]:
        name = block.partition("]")[0]
        data = block.partition("--> Data:\n")[2]
        found[name] = json.JSONDecoder().raw_decode(data)[0]
    return found


def test_pyinfra_reads_the_example(tmp_path: Path) -> None:
    """One node behind a bastion, and the cluster."""
    done = debug_inventory("prod", tmp_path)
    assert done.returncode == 0, done.stderr
    found = hosts(done.stdout + done.stderr)
    assert list(found) == ["gpu-node-1", "@cluster/gpu-prod"]
    assert found["gpu-node-1"]["ssh_user"] == "ubuntu"
    config = Path(found["gpu-node-1"]["ssh_config_file"]).read_text(encoding="utf-8")
    assert "HostName 10.0.10.11\n  ProxyJump jump@bastion.example.com" in config


def test_pyinfra_reads_the_sandbox(tmp_path: Path) -> None:
    """The cluster host is always there; the simulated hosts where this machine can isolate them."""
    done = debug_inventory("sandbox", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "@cluster/sandbox" in hosts(done.stdout + done.stderr)
