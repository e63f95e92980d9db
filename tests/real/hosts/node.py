"""Makes a virtual machine a node of a cluster, as its administrator would: kubelet, CNI plugins and their settings.

What it needs comes on a disk that the machine can only read: no network, and no copy of two hundred megabytes over SSH.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.real import binaries
from tests.real.access import Authority, kubeconfig_file
from tests.real.hosts.lan import SERVER_ADDRESS
from tests.real.hosts.machine import Machine
from tests.real.images import host
from tests.real.images.layers import Item
from tests.real.node import settings
from tests.real.node.hardware import OS_RELEASE
from tests.real.node.settings import CONTAINERD_SOCKET, NODE, NODE_ADDRESS

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


def missing() -> str:
    """Say what this computer lacks to make a node; an empty string if nothing."""
    if not settings.cni_folder():
        return "not installed: apt-get install containernetworking-plugins"
    return binaries.missing("kubelet")


def disk(folder: Path, plane: Path, images: Path) -> Path:
    """Make the disk of a node to be.

    Args:
        folder: Where the disk is made.
        plane: Folder of the node's control plane, which issues the kubelet's certificate.
        images: Archive of the container images that the node will have.
    """
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
    """Set the machine up, give it its images, and start its kubelet."""
    machine.run(_JOIN, seconds=_JOIN_SECONDS)
