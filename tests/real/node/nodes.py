"""A machine that is ready for its user: the node takes pods, the images are there, the user has their rights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_provision.inventory import load
from tests.real.images import build
from tests.real.images.layers import Layer
from tests.real.node import hardware, machine
from tests.real.node.settings import NODE
from tests.real.node.user import INVENTORY, NodeUser

GPUS = 2
_DEVICES = (hardware.VIRTIO, *[hardware.T4] * GPUS)


def missing() -> str:
    """Say what this computer lacks for a node with our images; an empty string if nothing."""
    return machine.missing() or build.missing()


shared = contextlib.ExitStack()
"""Nodes that the files of a folder share. The last test of the folder ends them: an idle control plane is not free."""


@contextlib.contextmanager
def ready_node(
    folder: Path,
    *,
    devices: tuple[tuple[str, ...], ...] | None = _DEVICES,
    inventory: Path = INVENTORY,
    files: Mapping[str, Layer] | None = None,
) -> Iterator[NodeUser]:
    """Start a machine with its files in a new folder, and end it with the block. What it came to stays in state.log.

    Without ``devices`` it has this computer's. Its images are those that the inventory needs; ``files`` lie in them, by
    the last part of their names.
    """
    if devices is not None:
        hardware.write_pci(folder / "pci", *devices)
    with machine.machine(folder) as node:
        user = NodeUser(folder, node, inventory)
        user.take_rights()
        node.until(lambda: takes_pods(user), what="the node does not get ready")
        _import_images(user, files)
        try:
            yield user
        finally:
            state = user.kubectl("get", "nodes,daemonsets,pods,events", "--all-namespaces", "-o", "wide", check=False)
            (folder / "state.log").write_text(state)


def takes_pods(user: NodeUser) -> bool:
    """Tell whether the node says that it is ready, and nothing keeps pods from it."""
    found = user.kubectl("get", "node", NODE, "--ignore-not-found", "-o", "json")
    node: dict[str, Any] = json.loads(found or '{"status": {}}')
    conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")


def _import_images(user: NodeUser, files: Mapping[str, Layer] | None) -> None:
    archive = build.archive(build.of_inventory(load(user.inventory)), user.folder / "images.tar", files=files)
    user.machine.run("ctr", "-n", "k8s.io", "images", "import", str(archive))
    archive.unlink()
