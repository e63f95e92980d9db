"""The driver manager: clears the way for a driver on a node that may have one already."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from subprocess import run

from gpu_provision.sandbox.operand_rules import DEPLOY, OPERANDS, paused_labels, resumed_labels

from . import gpus, kube, modules, mounts
from .process import end_when_told, say

_ROOT = "/run/nvidia/driver"
_MAX_WAIT, _PAUSE = 300.0, 2.0


def main() -> int:
    end_when_told()
    if sys.argv[1:2] != ["uninstall_driver"]:
        say(f"unknown command: {' '.join(sys.argv[1:])}")
        return 1
    node = os.environ.get("NODE_NAME", "")
    if not node:
        say("Error: required environment variable NODE_NAME is not set")
        return 1
    try:
        return _uninstall(node)
    except (kube.ApiError, OSError) as problem:
        say(f"Error: {problem}")
        return 1


def _uninstall(node: str) -> int:
    if Path("/host", gpus.SMI).is_file() and run(["chroot", "/host", "nvidia-smi"], check=False).returncode == 0:
        say("NVIDIA GPU driver is already pre-installed on the node")
        _set(node, {f"{DEPLOY}driver": "pre-installed"})
        time.sleep(60)
        return 1
    if os.path.ismount(_ROOT) or Path(_ROOT, gpus.SMI).exists():
        _replace(node)
    else:
        say("NVIDIA driver module is not loaded", "No eviction needed")
    Path("/run/nvidia/validations/.driver-ctr-ready").unlink(missing_ok=True)
    _set(node, resumed_labels(_labels(node)))
    return 0


def _replace(node: str) -> None:
    """Pause the operands, wait until they are gone, and take the old driver's files away."""
    paused = paused_labels(_labels(node))
    _set(node, paused)
    for operand, app in OPERANDS.items():
        if f"{DEPLOY}{operand}" in paused:
            say(f"Waiting for {operand} to shutdown")
            _gone(node, app)
    say("Unmounting NVIDIA driver rootfs...")
    while mounts.detach(_ROOT):
        pass
    modules.unload_driver()


def _gone(node: str, app: str) -> None:
    namespace = os.environ.get("OPERATOR_NAMESPACE", "")
    query = {"labelSelector": f"app={app}", "fieldSelector": f"spec.nodeName={node}"}
    deadline = time.monotonic() + _MAX_WAIT
    while kube.request("GET", f"/api/v1/namespaces/{namespace}/pods", query=query)["items"]:
        if time.monotonic() > deadline:
            say(f"timed out waiting for {app} to shut down")
            return
        time.sleep(_PAUSE)


def _labels(node: str) -> dict[str, str]:
    return dict(kube.request("GET", f"/api/v1/nodes/{node}")["metadata"].get("labels") or {})


def _set(node: str, labels: dict[str, str]) -> None:
    if labels:
        kube.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})
