"""A real node that has a driver of its own, read through its kubelet: ``driver.enabled: auto`` leaves it there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.answers import Answer
from tests.real.images.programs import gpus
from tests.real.images.programs.driver import present
from tests.real.node.nodes import GPUS, missing, ready_node
from tests.real.node.settings import NODE
from tests.real.node.user import CHECKOUT, VALIDATOR, NodeUser

pytestmark = pytest.mark.real

VERSION = "550.90.07"
# Of a driver's, what our reading and the stand-ins look at.
_INSTALL = """
set -e
libraries=/usr/lib/x86_64-linux-gnu
mkdir -p $libraries
cp {folder}/nvml $libraries/libnvidia-ml.so.{version}
ln -s libnvidia-ml.so.{version} $libraries/libnvidia-ml.so.1
echo 'driver {version}' >$libraries/libcuda.so.1
install -m 755 {program} /usr/bin/nvidia-smi
for device in {devices}; do mknod -m 666 /dev/$device c 1 11; done
mkdir /sys/module/nvidia
echo {version} >/sys/module/nvidia/version
echo 0 >/sys/module/nvidia/refcnt
mkdir -p /lib/modules/$(uname -r)
printf '%s\\n' drivers/i2c-core.ko drivers/ipmi_msghandler.ko >/lib/modules/$(uname -r)/modules.builtin
nvidia-smi
"""


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUser]:
    if reason := missing():
        pytest.skip(reason)
    with ready_node(tmp_path_factory.mktemp("own")) as user:
        document: dict[str, Any] = yaml.safe_load(user.inventory.read_text())
        document |= {"driver": {"enabled": "auto"}, "connect": "kubernetes", "helper_pod": {"image": VALIDATOR}}
        document["host_prerequisites"] = {"runtime_imports": False}
        document["preflight"] = {"registry": False}
        user.inventory.write_text(yaml.safe_dump(document))
        user.take_rights()
        install_driver(user)
        yield user


@pytest.fixture(scope="module")
def run(owner: NodeUser) -> Answer:
    return owner.apply(check=True)


def install_driver(user: NodeUser) -> None:
    found = present(user.folder / "pci")
    (user.folder / "nvml").write_text(gpus.describe(VERSION, found))
    devices = (*gpus.CONTROL_DEVICES, *(gpu.node for gpu in found))
    program = CHECKOUT / "tests/real/images/programs/nvidia-smi"
    script = _INSTALL.format(folder=user.folder, program=program, version=VERSION, devices=" ".join(devices))
    assert f"Driver Version: {VERSION}" in user.machine.run("sh", "-c", script)


def test_the_plan_says_so(owner: NodeUser) -> None:
    plan = owner.cli("plan", "-i", str(owner.inventory)).text
    assert f"{NODE}  {GPUS} GPUs  host driver {VERSION}" in plan
    assert f"host driver {VERSION} on {NODE}" in plan


def test_the_node_works_with_its_own_driver(owner: NodeUser, run: Answer) -> None:
    """No driver container; the toolkit and the plugin look below the root of the host, and pods get its files.

    There is no systemd on this machine to keep the driver initialized, which is worth a warning.
    """
    assert "systemd does not run here" in run.text
    assert owner.pods("nvidia-driver-daemonset") == [], run.text
    labels = owner.json("node", NODE)["metadata"]["labels"]
    assert labels["nvidia.com/gpu.deploy.driver"] == "pre-installed"
    assert labels["gpu-provision.io/host-driver"] == VERSION
    assert "NVIDIA_DRIVER_ROOT=/\n" in owner.machine.run("cat", "/run/nvidia/validations/driver-ready")
    assert owner.allocatable() == str(GPUS)
    asking = owner.finished_pod("asking", VALIDATOR, "vectorAdd && nvidia-smi -L", gpus=1)
    assert asking["status"]["phase"] == "Succeeded", owner.log(asking)
    assert "Test PASSED" in owner.log(asking)


def test_the_second_run_changes_nothing(owner: NodeUser, run: Answer) -> None:
    """With the host read once more, and with the labels alone. Helper pods come and go."""
    for arguments in ((), ("--cluster-only",)):
        before = len(written(owner))
        assert owner.apply(*arguments).code == 0, run.text
        assert len(written(owner)) == before


def written(user: NodeUser) -> list[str]:
    """Return what was written but for helper pods."""
    return [event["requestURI"] for event in user.writes() if "/namespaces/kube-system/" not in event["requestURI"]]
