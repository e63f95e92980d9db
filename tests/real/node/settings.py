"""What the machine is made of: its names and addresses, the programs on it, and their settings."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.real import binaries
from tests.real.access import SERVICE_ADDRESS, kubeconfig_file
from tests.real.node.hardware import OS_RELEASE

CONTROL_PLANE = "control-plane"
NODE = "gpu-1"
KUBELET_USER = f"system:node:{NODE}"
NODE_ADDRESS = "192.0.2.10"
PORT = 443
"""The port of the Service `kubernetes`: where the machine has its address, no proxy has to lead pods there."""
PAUSE_IMAGE = "registry.k8s.io/pause:3.9"
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

_CONTROL_PLANE = (
    *("--bind", "0.0.0.0", "--port", str(PORT)),  # noqa: S104 - all addresses of a network that only its pods share
    *("--advertise", NODE_ADDRESS, "--user", f"{KUBELET_USER}=system:nodes"),
)

_CONTAINERD = """\
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins."io.containerd.grpc.v1.cri"]
  # Settings of a containerd that may not do all that root may, or on whose machine others' profiles are kept.
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  disable_apparmor = true
  sandbox_image = "{pause}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""

POD_NETWORK = "10.2.0.0/16"
PODS = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": POD_NETWORK}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": "/run/cni",
            },
        }
    ],
}


def kubelet(*, authority: Path, certificate: Path, key: Path) -> dict[str, Any]:
    """Return a kubelet's configuration, wherever it runs."""
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "cgroupDriver": "cgroupfs",
        "clusterDNS": [SERVICE_ADDRESS],
        "clusterDomain": "cluster.local",
        "enforceNodeAllocatable": [],
        "evictionHard": {"nodefs.available": "1%"},
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "4s",
        "oomScoreAdj": 0,
        "syncFrequency": "5s",
    }


def _kubelet(directory: Path) -> dict[str, Any]:
    own = {"certificate": directory / "kubelet.crt", "key": directory / "kubelet.key"}
    return kubelet(authority=directory / "plane/ca.crt", **own)


def files(directory: Path) -> dict[Path, str]:
    """Return the settings files of the node, by their path within the machine."""
    return {
        Path("/etc/containerd/config.toml"): _CONTAINERD.format(pause=PAUSE_IMAGE, cni=cni_folder()),
        Path("/etc/cni/net.d/10-pods.conflist"): json.dumps(PODS),
        Path("/etc/os-release"): OS_RELEASE,
        Path("/etc/hosts"): f"127.0.0.1 localhost\n{NODE_ADDRESS} {NODE}\n",
        Path("/etc/resolv.conf"): "",
        directory / "kubelet.json": json.dumps(_kubelet(directory)),
    }


def programs(directory: Path) -> dict[str, tuple[str, ...]]:
    """Return the command lines of the machine's programs."""
    kubeconfig = kubeconfig_file(directory / "plane", KUBELET_USER)
    command = (
        str(binaries.binary("kubelet")),
        f"--config={directory}/kubelet.json",
        f"--kubeconfig={kubeconfig}",
        "--container-runtime=remote",
        f"--container-runtime-endpoint=unix://{CONTAINERD_SOCKET}",
        f"--hostname-override={NODE}",
        f"--node-ip={NODE_ADDRESS}",
    )
    wait = f"until [ -s {shlex.quote(str(kubeconfig))} ]; do sleep 0.2; done; exec {shlex.join(command)}"
    return {
        CONTROL_PLANE: (sys.executable, "-m", "tests.real.control_plane", str(directory / "plane"), *_CONTROL_PLANE),
        "containerd": ("containerd",),
        "kubelet": ("sh", "-c", wait),
    }


def cni_folder() -> Path | None:
    """Return the folder of the machine's CNI plugins, if it has them."""
    return next((folder for folder in CNI_FOLDERS if (folder / "bridge").exists()), None)


def missing_programs() -> list[str]:
    """Return what is needed and not installed."""
    programs = ("containerd", "ctr", "runc", "ip", "mount", "nsenter", "openssl", "pivot_root", "setpriv", "unshare")
    lacking = [program for program in programs if not shutil.which(program)]
    return lacking if cni_folder() else [*lacking, "CNI plugins (Debian: containernetworking-plugins)"]
