"""What the machine is made of: its names and addresses, the programs on it, and their settings."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import data_file
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

_FILES: Mapping[str, Any] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
PODS: Mapping[str, Any] = _FILES["pods"]
POD_NETWORK: str = PODS["plugins"][0]["ipam"]["ranges"][0][0]["subnet"]


def kubelet(*, authority: Path, certificate: Path, key: Path) -> dict[str, Any]:
    """Return a kubelet's configuration, wherever it runs."""
    declared = _FILES["kubelet"]
    return {
        **declared,
        "authentication": {**declared["authentication"], "x509": {"clientCAFile": str(authority)}},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "clusterDNS": [SERVICE_ADDRESS],
    }


def files(directory: Path, *, has_stand_ins: bool) -> dict[Path, str]:
    """Return the machine's files; one with stand-ins for hardware also has another operating system's name."""
    return {
        **({Path("/etc/os-release"): OS_RELEASE} if has_stand_ins else {}),
        Path("/etc/containerd/config.toml"): _FILES["containerd"].format(pause=PAUSE_IMAGE, cni=cni_folder()),
        Path("/etc/containerd/base.json"): json.dumps(_base_spec()),
        Path("/etc/cni/net.d/10-pods.conflist"): json.dumps(PODS),
        Path("/etc/hosts"): f"127.0.0.1 localhost\n{NODE_ADDRESS} {NODE}\n",
        Path("/etc/resolv.conf"): "",
        directory / "kubelet.json": json.dumps(
            kubelet(
                authority=directory / "plane/ca.crt",
                certificate=directory / "kubelet.crt",
                key=directory / "kubelet.key",
            )
        ),
    }


def _base_spec() -> dict[str, Any]:
    """Return what containerd makes of every container: its own default, with the machine's list of kernel modules."""
    told = subprocess.run(["ctr", "oci", "spec"], check=True, capture_output=True, text=True).stdout
    default: dict[str, Any] = json.loads(told)
    modules = {"destination": "/sys/module", "type": "bind", "source": "/sys/module", "options": ["rbind", "ro"]}
    return {**default, "mounts": [*default["mounts"], modules]}


def programs(directory: Path) -> dict[str, tuple[str, ...]]:
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
    return next((folder for folder in CNI_FOLDERS if (folder / "bridge").exists()), None)


def missing_programs() -> list[str]:
    programs = ("containerd", "ctr", "runc", "ip", "mount", "nsenter", "openssl", "pivot_root", "setpriv", "unshare")
    lacking = [program for program in programs if not shutil.which(program)]
    return lacking if cni_folder() else [*lacking, "CNI plugins (Debian: containernetworking-plugins)"]
