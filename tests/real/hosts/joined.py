"""A virtual machine that is the one GPU node of a real control plane, and a user who owns both.

The control plane runs on this computer, in a network of its own with the machine: the API server reaches the kubelet at
the node's own address for logs and exec, and pods at theirs; kubelet and pods reach the API server, which listens at
the Service's address itself, so that no proxy has to lead them there.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.inventory import load
from tests.real import control_plane
from tests.real.hosts import lan, node
from tests.real.hosts.machine import Hardware, Machine, started
from tests.real.images import build
from tests.real.node import machine as real_node
from tests.real.node.nodes import takes_pods
from tests.real.node.settings import CONTROL_PLANE, KUBELET_USER, NODE, NODE_ADDRESS, PORT
from tests.real.node.user import NodeUser
from tests.real.processes import NotReadyError, await_ready, process

_INVENTORY = Path(real_node.__file__).with_name("inventory.yaml")
_PATIENCE_SECONDS = 600
_MEMORY = "2048M"
_CONTROL_PLANE = (
    *("--bind", "0.0.0.0", "--port", str(PORT)),  # noqa: S104 - all addresses of a network with one machine
    *("--advertise", lan.SERVER_ADDRESS, "--user", f"{KUBELET_USER}=system:nodes"),
    *("--flag", "kubelet-preferred-address-types=InternalIP"),  # the node's name does not resolve
)
_PATIENT = ("nfd", "toolkit", "validator", "device_plugin", "gfd", "dcgm_exporter")
_SECTIONS: dict[str, dict[str, Any]] = {
    **{component: {"timeout": 900} for component in _PATIENT},
    "host_prerequisites": {
        "kernel_modules": ["i2c_core", "ipmi_msghandler", "ipmi-devintf"],
        "reboot": "if-required",
        "drain": {"timeout_seconds": 600},
    },
    "preflight": {"registry": False},
    "driver": {"startup_probe": {"initial_delay_seconds": 5}},  # nothing is compiled there
}


@dataclass(frozen=True, slots=True)
class JoinedMachine(real_node.Machine):
    """The machine as the tests of a real node know theirs; ``pid`` is that of the process that holds the network."""

    virtual: Machine

    def run(self, *command: str) -> str:
        """Run a command on the machine, over SSH, and return its output."""
        return self.virtual.run(shlex.join(command))

    def until(self, condition: Callable[[], object], *, what: str, seconds: float = _PATIENCE_SECONDS) -> None:
        """Wait until a condition holds; an emulated machine takes its time."""
        real_node.Machine.until(self, condition, what=what, seconds=seconds)


class Owner(NodeUser):
    """A user with an inventory of machine and cluster: the host phase comes over SSH, as root."""

    def __init__(self, folder: Path, machine: JoinedMachine) -> None:
        super().__init__(folder, machine)
        self.virtual = machine.virtual
        self.environment["HOME"] = str(folder)
        document = yaml.safe_load(self.inventory.read_text()) | _SECTIONS
        document["nodes"] = [{"name": NODE, "pool": "t4", "address": NODE_ADDRESS, "ssh": self._ssh()}]
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def _ssh(self) -> dict[str, Any]:
        known_hosts = str(self.virtual.known_hosts)
        return {"user": "root", "key": str(self.virtual.key), "known_hosts_file": known_hosts}

    def without_ssh(self) -> Path:
        """Write the same inventory once more, whose hosts are reached through the Kubernetes API; return its path."""
        document = yaml.safe_load(self.inventory.read_text()) | {"connect": "kubernetes"}
        document["helper_pod"] = {"image": "nvcr.io/nvidia/gpu-operator:v26.7.0"}
        for each in document["nodes"]:
            del each["address"], each["ssh"]
        path = self.folder / "without_ssh.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path


def missing() -> str:
    """Say what this computer lacks for such a machine; an empty string if nothing."""
    return lan.missing() or node.missing() or build.missing() or control_plane.missing()


@contextlib.contextmanager
def joined(folder: Path, image: Path) -> Iterator[Owner]:
    """Start a control plane and a machine, and have the machine join. What it came to stays in ``state.log``."""
    with contextlib.ExitStack() as running:
        network = running.enter_context(lan.lan(folder))
        running.enter_context(_control_plane(folder, network))
        images = build.archive(build.of_inventory(load(_INVENTORY)), folder / "images.tar")
        disk = node.disk(folder, folder / "plane", images)
        hardware = Hardware(memory=_MEMORY, disks=(disk,))
        virtual = running.enter_context(started(NODE, image, folder / "machine", hardware, network.link))
        owner = Owner(folder, JoinedMachine(folder, network.holder, virtual))
        owner.take_rights()
        virtual.await_boot()
        node.join(virtual)
        owner.machine.until(lambda: takes_pods(owner), what="the node does not get ready")
        try:
            yield owner
        finally:
            state = owner.kubectl("get", "nodes,daemonsets,pods,events", "-A", "-o", "wide", check=False)
            (folder / "state.log").write_text(state)


@contextlib.contextmanager
def _control_plane(folder: Path, network: lan.Lan) -> Iterator[None]:
    """Run a control plane in a network; its files are in ``plane`` in the folder."""
    (folder / "log").mkdir()
    log = folder / "log" / f"{CONTROL_PLANE}.log"
    command = [sys.executable, "-m", "tests.real.control_plane", str(folder / "plane"), *_CONTROL_PLANE]
    with process(log, [*network.network, *command]) as running:
        if not await_ready(lambda: f"{folder}/plane/kubeconfig\n" in log.read_text(), running):
            raise NotReadyError(log.read_text())
        yield
