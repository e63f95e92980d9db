"""Containers beside the driver, and the validator's wait for their modules.

Real: kubelet and containerd start the containers of the driver's pod and run their startup probes; the validator's init
containers run one after the other, with the scripts of the manifests; hostPath volumes and their mount propagation.
Stand-ins: the programs of driver, nvidia-fs and gdrdrv. They load nothing, a module is a directory of the machine's
``/sys/module``. The test writes the file by which the container of a network driver says that it is ready.
"""

from __future__ import annotations

import math
from datetime import datetime

import pytest

from tests.real.node.optional.conftest import FirstRun
from tests.real.node.user import OPERANDS, NodeUser, init_container

pytestmark = pytest.mark.real

MODULES = {"nvidia_peermem", "nvidia_fs", "gdrdrv"}


def test_no_operand_starts_before_the_modules(first_run: FirstRun) -> None:
    """The driver works, and yet the toolkit is not validated, so that the device plugin waits."""
    assert "waiting for module nvidia_peermem" in first_run.log
    assert "driver-ready" in first_run.validations
    assert ".driver-ctr-ready" in first_run.validations
    assert not {"toolkit-ready", "cuda-ready"}.intersection(first_run.validations)
    assert all("waiting" in status["state"] for status in first_run.plugin["status"]["containerStatuses"])


@pytest.mark.usefixtures("first_run")
def test_the_wait_ended_with_the_last_module(node: NodeUser) -> None:
    waited = init_container(node.pod("nvidia-operator-validator"), "driver-container-validation")
    ended = datetime.fromisoformat(waited["finishedAt"]).timestamp()
    loaded = node.machine.run("stat", "--format=%Y", *(f"/sys/module/{name}" for name in sorted(MODULES))).split()
    assert ended >= math.floor(max(map(float, loaded)))


@pytest.mark.usefixtures("first_run")
def test_the_device_plugin_sees_the_modules(node: NodeUser) -> None:
    """It looks for their devices when it starts."""
    plugin = node.pod("nvidia-device-plugin-daemonset")["metadata"]["name"]
    listed = node.kubectl("exec", "-n", OPERANDS, plugin, "-c", "nvidia-device-plugin", "--", "ls", "/sys/module")
    assert set(listed.split()) >= MODULES


@pytest.mark.usefixtures("first_run")
def test_the_containers_beside_the_driver_are_ready(node: NodeUser) -> None:
    """No probe failed so often that a container was restarted."""
    statuses = node.pod("nvidia-driver-daemonset")["status"]["containerStatuses"]
    assert {each["name"]: (each["ready"], each["restartCount"]) for each in statuses} == dict.fromkeys(
        ("nvidia-driver-ctr", "nvidia-peermem-ctr", "nvidia-fs-ctr", "nvidia-gdrcopy-ctr"), (True, 0)
    )
