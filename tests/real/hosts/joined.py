"""A virtual machine that joins a real control plane as its one GPU node, and a user who owns both.

The control plane runs on this computer, in a network of its own with the machine: the API server reaches the kubelet at
the node's own address for logs and exec, and pods at theirs; kubelet and pods reach the API server, which listens at
the Service's address itself, so that no proxy has to lead them there. Nothing leads out of that network. What the
machine needs comes on a disk that it can only read: no copy of two hundred megabytes over SSH.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.inventory import load
from tests.real import binaries, control_plane
from tests.real.access import SERVICE_ADDRESS, Authority, kubeconfig_file
from tests.real.hosts.machine import Hardware, Link, Machine, started
from tests.real.images import build, host
from tests.real.images.layers import Item
from tests.real.node import machine as real_node
from tests.real.node import settings
from tests.real.node.hardware import OS_RELEASE
from tests.real.node.nodes import takes_pods
from tests.real.node.settings import (
    CONTAINERD_SOCKET,
    CONTROL_PLANE,
    KUBELET_USER,
    NODE,
    NODE_ADDRESS,
    POD_NETWORK,
    PORT,
)
from tests.real.node.user import NodeUser
from tests.real.processes import NotReadyError, await_ready, process

SERVER_ADDRESS = "192.0.2.1"
_CABLE = "tap0"
_TUN = Path("/dev/net/tun")
_SET_UP = f"""set -e
ip link set lo up
ip address add {SERVICE_ADDRESS}/32 dev lo
ip tuntap add {_CABLE} mode tap
ip address add {SERVER_ADDRESS}/24 dev {_CABLE}
ip link set {_CABLE} up
ip route add {POD_NETWORK} via {NODE_ADDRESS}
touch "$1"
exec sleep infinity
"""


@dataclass(frozen=True, slots=True)
class Lan:
    holder: int

    @property
    def network(self) -> tuple[str, ...]:
        return "nsenter", "--target", str(self.holder), "--net", "--"

    @property
    def link(self) -> Link:
        """How a machine is connected to it: with an address that it need not ask for."""
        told = f"ip={NODE_ADDRESS}::{SERVER_ADDRESS}:255.255.255.0::eth0:off"
        netdev = f"tap,id=net,ifname={_CABLE},script=no,downscript=no"
        return Link(NODE_ADDRESS, 22, netdev, told, self.network)


def _lan_missing() -> str:
    """Say what this computer lacks for such a network; an empty string if nothing."""
    if os.geteuid():
        return "a network of the tests' own needs root"
    if not _TUN.exists():
        return f"this computer has no {_TUN}"
    return "" if shutil.which("ip") else "not installed: apt-get install iproute2"


@contextlib.contextmanager
def lan(folder: Path) -> Iterator[Lan]:
    """Make a network that ends with the block, or with us, however we end."""
    ready, log = folder / "lan-is-up", folder / "lan.log"
    with process(log, ["unshare", "--net", "--", "sh", "-c", _SET_UP, "sh", str(ready)]) as holder:
        if not await_ready(ready.exists, holder):
            raise NotReadyError(log.read_text())
        yield Lan(holder.pid)


_MEGABYTES = 512
_JOIN_SECONDS = 400
_DISK = "/opt/node"
_CONFIG = "/var/lib/kubelet/config.yaml"
_KUBECONFIG = "/etc/kubernetes/kubelet.conf"
_AUTHORITY = "/etc/kubernetes/pki/ca.crt"
_CERTIFICATE, _KEY = "/var/lib/kubelet/pki/kubelet.crt", "/var/lib/kubelet/pki/kubelet.key"
_PLUGINS = ("bridge", "host-local", "loopback")

_CONTAINERD = f"""\
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{settings.PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_DISK}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""
"""What an administrator has there before we come: without imports."""

_UNIT = f"""\
[Unit]
Description=kubelet
After=containerd.service

[Service]
ExecStart={_DISK}/bin/kubelet --config={_CONFIG} --kubeconfig={_KUBECONFIG} --container-runtime=remote \
--container-runtime-endpoint=unix://{CONTAINERD_SOCKET} --node-ip={NODE_ADDRESS}
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
"""

_PYTHON = f"""\
#!/bin/sh
exec {_DISK}/lib/{{loader}} --library-path {_DISK}/lib {_DISK}{host.PYTHON} "$@"
"""
"""For the stand-in of NVIDIA's container runtime; nothing else on the machine uses it."""

_JOIN = f"""set -e
mkdir -p {_DISK}
echo '/dev/vdb {_DISK} ext4 ro,nofail 0 0' >>/etc/fstab
systemctl daemon-reload
mount {_DISK}
cp --recursive --no-dereference --remove-destination {_DISK}/files/. /
chmod 600 {_KEY} {_KUBECONFIG}
hostnamectl set-hostname {NODE}
sysctl --quiet --system
systemctl restart containerd
ctr --namespace k8s.io images import {_DISK}/images.tar >/dev/null
systemctl --quiet enable --now kubelet
"""


def _node_missing() -> str:
    """Say what this computer lacks to make a node; an empty string if nothing."""
    if not settings.cni_folder():
        return "not installed: apt-get install containernetworking-plugins"
    return binaries.missing("kubelet")


def disk(folder: Path, plane: Path, images: Path) -> Path:
    """Make the disk of a node to be."""
    tree = folder / "node"
    for path, item in {**_programs(), **_files(plane)}.items():
        _put(tree / path.lstrip("/"), item)
    shutil.copy(images, tree / "images.tar")
    made = folder / "node.ext4"
    with made.open("wb") as file:
        file.truncate(_MEGABYTES << 20)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", tree, made], check=True)
    shutil.rmtree(tree)
    return made


def _put(path: Path, item: Item) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if item.link:
        path.symlink_to(item.link)
        return
    path.write_bytes(item.data)
    path.chmod(item.mode)


def _programs() -> dict[str, Item]:
    """Return what runs: kubelet, the network plugins, and Python with its libraries in a folder of their own."""
    plugins = settings.cni_folder() or Path()
    python = host.python()
    return {
        "/bin/kubelet": Item(binaries.binary("kubelet").read_bytes(), 0o755),
        **{f"/cni/{name}": Item((plugins / name).read_bytes(), 0o755) for name in _PLUGINS},
        **{path if path.startswith(host.HOME) else f"/lib/{Path(path).name}": item for path, item in python.items()},
    }


def _files(plane: Path) -> dict[str, Item]:
    """Return what joining the cluster puts on the machine."""
    issued = Authority(plane).issue("kubelet", NODE, NODE_ADDRESS)
    kubelet = settings.kubelet(authority=Path(_AUTHORITY), certificate=Path(_CERTIFICATE), key=Path(_KEY))
    kubelet |= {"cgroupDriver": "systemd", "syncFrequency": "1m"}
    loader = next(Path(path).name for path in host.python() if Path(path).name.startswith("ld-"))
    texts = {
        "/etc/containerd/config.toml": _CONTAINERD,
        "/etc/hosts": f"127.0.0.1 localhost\n{NODE_ADDRESS} {NODE}\n",
        "/etc/resolv.conf": "",
        "/etc/cni/net.d/10-pods.conflist": json.dumps(settings.PODS),
        "/etc/systemd/system/kubelet.service": _UNIT,
        "/etc/sysctl.d/50-pods.conf": "net.ipv4.ip_forward = 1\n",
        "/usr/lib/os-release": OS_RELEASE,
        _CONFIG: json.dumps(kubelet, indent=1),
        _KUBECONFIG: _kubeconfig(kubeconfig_file(plane, settings.KUBELET_USER)),
        _AUTHORITY: (plane / "ca.crt").read_text(),
        _CERTIFICATE: issued.certificate.read_text(),
        _KEY: issued.key.read_text(),
    }
    items = {path: Item(text.encode()) for path, text in texts.items()}
    items["/usr/local/bin/python3"] = Item(_PYTHON.format(loader=loader).encode(), 0o755)
    return {f"/files{path}": item for path, item in items.items()}


def _kubeconfig(ours: Path) -> str:
    """Return the kubelet's kubeconfig: as on this computer, but for where server and authority are."""
    document = yaml.safe_load(ours.read_text())
    reached = {"server": f"https://{SERVER_ADDRESS}:{settings.PORT}", "certificate-authority": _AUTHORITY}
    document["clusters"][0]["cluster"] = reached
    return str(yaml.safe_dump(document))


def join(machine: Machine) -> None:
    machine.run(_JOIN, seconds=_JOIN_SECONDS)


_INVENTORY = Path(real_node.__file__).with_name("inventory.yaml")
_PATIENCE_SECONDS = 600
_MEMORY = "2048M"
_CONTROL_PLANE = (
    *("--bind", "0.0.0.0", "--port", str(PORT)),  # noqa: S104 - all addresses of a network with one machine
    *("--advertise", SERVER_ADDRESS, "--user", f"{KUBELET_USER}=system:nodes"),
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
        return self.virtual.run(shlex.join(command))

    def until(self, condition: Callable[[], object], *, what: str, seconds: float = _PATIENCE_SECONDS) -> None:
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
    return _lan_missing() or _node_missing() or build.missing() or control_plane.missing()


@contextlib.contextmanager
def joined(folder: Path, image: Path) -> Iterator[Owner]:
    """Start a control plane and a machine, and have the machine join. What it came to stays in ``state.log``."""
    with contextlib.ExitStack() as running:
        network = running.enter_context(lan(folder))
        running.enter_context(_control_plane(folder, network))
        images = build.archive(build.of_inventory(load(_INVENTORY)), folder / "images.tar")
        made = disk(folder, folder / "plane", images)
        hardware = Hardware(memory=_MEMORY, disks=(made,))
        virtual = running.enter_context(started(NODE, image, folder / "machine", hardware, network.link))
        owner = Owner(folder, JoinedMachine(folder, network.holder, virtual))
        owner.take_rights()
        virtual.await_boot()
        join(virtual)
        owner.machine.until(lambda: takes_pods(owner), what="the node does not get ready")
        try:
            yield owner
        finally:
            state = owner.kubectl("get", "nodes,daemonsets,pods,events", "-A", "-o", "wide", check=False)
            (folder / "state.log").write_text(state)


@contextlib.contextmanager
def _control_plane(folder: Path, network: Lan) -> Iterator[None]:
    """Run a control plane in a network; its files are in ``plane`` in the folder."""
    (folder / "log").mkdir()
    log = folder / "log" / f"{CONTROL_PLANE}.log"
    command = [sys.executable, "-m", "tests.real.control_plane", str(folder / "plane"), *_CONTROL_PLANE]
    with process(log, [*network.network, *command]) as running:
        if not await_ready(lambda: f"{folder}/plane/kubeconfig\n" in log.read_text(), running):
            raise NotReadyError(log.read_text())
        yield
