"""What runs on the node survives when kubelet and the container runtime are started again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real.node.nodes import GPUS
from tests.real.node.user import OPERANDS, VALIDATOR, NodeUser

pytestmark = pytest.mark.real


@pytest.mark.usefixtures("first_run")
def test_the_plugin_registers_again_after_a_kubelet_restart(user: NodeUser) -> None:
    plugin = user.pod("nvidia-device-plugin-daemonset")
    before = _registrations(user, plugin)
    user.machine.restart("kubelet")
    user.machine.until(lambda: _registrations(user, plugin) > before, what="the plugin does not register again")
    user.machine.until(lambda: user.allocatable() == str(GPUS), what="the GPUs do not come back")


def _registrations(user: NodeUser, plugin: Any) -> int:
    return user.log(plugin, check=False).count("Registered device plugin")


@pytest.mark.usefixtures("first_run")
def test_what_runs_survives_a_restart_of_the_container_runtime(user: NodeUser) -> None:
    """The toolkit itself restarts it. The pods run on, and new ones still get their GPUs."""
    before = _running(user)
    user.machine.restart("containerd")
    again = user.finished_pod("again", VALIDATOR, "vectorAdd", gpus=1)
    assert again["status"]["phase"] == "Succeeded", again["status"]
    assert "Test PASSED" in user.log(again)
    assert _running(user) == before


def _running(user: NodeUser) -> dict[str, int]:
    pods = user.json("pods", "-n", OPERANDS)["items"]
    return {
        status["containerID"]: status["restartCount"]
        for pod in pods
        for status in pod["status"].get("containerStatuses", ())
        if pod["status"]["phase"] == "Running"
    }
