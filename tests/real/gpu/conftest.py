"""A node that has this computer's GPUs and driver, and its first run."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.inventory.hardware import find_model
from tests.answers import Answer
from tests.real.gpu import host
from tests.real.node.nodes import missing, ready_node
from tests.real.node.settings import NODE
from tests.real.node.user import NodeUser

_INVENTORY = Path(__file__).with_name("inventory.yaml")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUser]:
    if reason := host.missing() or missing():
        pytest.skip(reason)
    folder, made = tmp_path_factory.mktemp("gpu"), tmp_path_factory.mktemp("made")
    files = host.image_files(host.build_vector_add(made))
    with ready_node(folder, devices=None, inventory=_inventory(made), files=files) as user:
        _install_driver(user)
        yield user


@pytest.fixture(scope="session")
def first_run(node: NodeUser) -> Answer:
    return node.apply(check=True)


def _inventory(folder: Path) -> Path:
    """Write the inventory with a pool for the GPUs that are here."""
    document: dict[str, Any] = yaml.safe_load(_INVENTORY.read_text())
    told, gpus = platform.freedesktop_os_release(), host.asked("name")
    model = find_model(gpus[0][0])
    assert model, f"the inventory knows no model {gpus[0][0]}"
    document["pools"] = {
        "own": {"os": f"{told['ID']}{told['VERSION_ID']}", "gpu": {"model": model.name, "count": len(gpus)}}
    }
    document["nodes"] = [{"name": NODE, "pool": "own"}]
    written = folder / "inventory.yaml"
    written.write_text(yaml.safe_dump(document))
    return written


def _install_driver(user: NodeUser) -> None:
    """Give the node the driver's files where NVIDIA's packages have them, and the device nodes."""
    staged = user.folder / "driver"
    staged.mkdir()
    for path, source in host.files().items():
        shutil.copy(source, staged / Path(path).name)
    version = host.asked("driver_version")[0][0]
    assert "GPU 0: " in user.machine.run("sh", "-c", host.script(staged, version))
