"""Records clusters that an earlier version has provisioned.

    python -m tests.upgrades.record [FOLDER]

That version runs as it was committed, on its own sandbox. `command-line` is a cluster after three runs of the command
line. `operator` is a cluster with a stack and the operator: at rest, and in the middle of a rollout. Its controller is
killed each time, so that its lease is held, and in the middle of a rollout the lock, too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.contract.client import until
from tests.scenarios.client import Client
from tests.upgrades import old, state

DATA = Path(__file__).parent / old.COMMIT
IMAGE = "registry.example.com/gpu-provision:0.1.0"
DRIVERS, PLUGINS = ("580.126.20", "580.178.04"), ("v0.19.3", "v0.20.0")
_SECONDS = 120


class Home:
    """A folder with a sandbox of that version, and the commands that are typed there."""

    def __init__(self, folder: Path, version: Path, nodes: list[dict[str, Any]]) -> None:
        folder.mkdir()
        self._version, self._folder, self._fleet = version, folder, folder / "fleet.yaml"
        self._fleet.write_text(yaml.safe_dump({"name": "default", "nodes": nodes, "timings": {"speed": 10}}))
        self._sandbox = folder / "default"
        self._environment = {
            **os.environ,
            "GPU_PROVISION_SANDBOX_DIR": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "KUBECONFIG": str(self._sandbox / "kubeconfig"),
        }

    def run(self, *words: str) -> str:
        command, place = old.command(self._version, *words), {"cwd": self._folder, "env": self._environment}
        return subprocess.run(command, **place, stdout=subprocess.PIPE, text=True, timeout=_SECONDS, check=True).stdout

    @contextlib.contextmanager
    def sandbox(self, target: Path) -> Iterator[Client]:
        self.run("sandbox", "up", "--fleet", str(self._fleet))
        try:
            with contextlib.closing(Client(self._sandbox / "kubeconfig")) as client:
                yield client
        finally:
            self.run("sandbox", "down")
        state.dump(self._sandbox, target)

    @contextlib.contextmanager
    def controller(self) -> Iterator[None]:
        command = old.command(self._version, "operator", "run", "--port", "0")
        with subprocess.Popen(command, cwd=self._folder, env=self._environment) as run:
            try:
                yield
            finally:
                run.kill()


def _nodes(version: Path, *gpu_nodes: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the default fleet's nodes and an inventory for them, with these GPU nodes and all that have none."""
    fleet = yaml.safe_load((version / "gpu_provision/sandbox/fleets/default.yaml").read_text())["nodes"]
    inventory = yaml.safe_load((version / "inventories/sandbox.yaml").read_text())
    nodes = [node for node in fleet if "gpu" not in node or node["name"] in gpu_nodes]
    names = {node["name"] for node in nodes}
    inventory["nodes"] = [node for node in inventory["nodes"] if node["name"] in names]
    return nodes, inventory


def _write(file: Path, value: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(value, sort_keys=False))
    return file


def command_line(folder: Path, version: Path, target: Path) -> None:
    """Three runs: a first one, one with another device plugin, and one that rolls out another driver."""
    nodes, inventory = _nodes(version, "t4-1", "t4-2", "h100-1")
    _write(target / "nodes.yaml", nodes)
    home = Home(folder, version, nodes)
    with home.sandbox(target):
        for number, driver, plugin in ((1, 0, 0), (2, 0, 1), (3, 1, 1)):
            inventory |= {"driver": {"version": DRIVERS[driver]}, "device_plugin": {"version": PLUGINS[plugin]}}
            file = _write(target / f"run-{number}.yaml", inventory)
            home.run("apply", "--yes", "--cluster-only", "-i", str(file))


def operator(folder: Path, version: Path, target: Path) -> None:
    """A stack at rest whose controller leads, and then one in the middle of the rollout of another driver."""
    nodes, inventory = _nodes(version, "t4-1", "t4-2")
    _write(target / "nodes.yaml", nodes)
    file = _write(target / "inventory.yaml", inventory | {"driver": {"version": DRIVERS[0]}})
    home = Home(folder, version, nodes)
    with home.sandbox(target / "at-rest") as client, home.controller():
        home.run("operator", "install", "--image", IMAGE, "-y")
        stack = home.run("operator", "stack", "-i", str(file))
        client.apply(stack, "gpu-provision")
        until(lambda: _is_ready(client), seconds=_SECONDS)
    with home.sandbox(target / "mid-rollout") as client, home.controller():
        client.patch("gpustack", "sandbox", patch={"spec": {"driver": {"version": DRIVERS[1]}}})
        until(lambda: _upgrades(client) > {"upgrade-done"}, seconds=_SECONDS)


def _is_ready(client: Client) -> bool:
    conditions = (client.get("gpustack", "sandbox").get("status") or {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def _upgrades(client: Client) -> set[str]:
    """Return how far the rollout is on GPU nodes."""
    nodes = client.get("nodes", "-l", "nvidia.com/gpu.present")["items"]
    return {node["metadata"]["labels"].get("nvidia.com/gpu-driver-upgrade-state", "") for node in nodes}


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        version = old.unpack(Path(scratch))
        command_line(Path(scratch) / "a", version, target / "command-line")
        operator(Path(scratch) / "b", version, target / "operator")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else DATA)
