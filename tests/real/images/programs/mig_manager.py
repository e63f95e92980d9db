"""The MIG manager: follows the label of its node, pauses the operands, and divides the GPUs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import yaml

from gpu_provision.sandbox.operand_rules import (
    DEPLOY,
    MIG_CLIENTS,
    MIG_CONFIG,
    MIG_STATE,
    OPERANDS,
    PAUSED_FOR_MIG,
    find_mig_devices,
    paused_labels,
    resumed_labels,
)

from . import gpus, kube
from .process import end_when_told, say

_VALIDATOR = "nvidia-operator-validator"
_MAX_WAIT, _PAUSE = 300.0, 1.0


class Failed(Exception):
    """Why a configuration is not applied."""


def main() -> int:
    """Apply each configuration that the label requests, also at the start; an equal value again changes nothing."""
    end_when_told()
    node, last = os.environ["NODE_NAME"], ""
    try:
        while True:
            for kind, seen in kube.watch("/api/v1/nodes", {"fieldSelector": f"metadata.name={node}"}):
                wanted = _labels_of(seen).get(MIG_CONFIG, "") if kind in {"ADDED", "MODIFIED"} else last
                if wanted and wanted != last:
                    _update(node, wanted)
                last = wanted
    except (kube.ApiError, OSError) as problem:
        say(f'level=fatal msg="{problem}"')
        return 1


def _update(node: str, wanted: str) -> None:
    say(f'level=info msg="Updating to MIG config: {wanted}"')
    try:
        _apply(node, wanted)
    except (Failed, gpus.NoDriver) as problem:
        say(f'level=error msg="{problem}"')
        state = "failed"
    else:
        say(f'level=info msg="Successfully updated to MIG config: {wanted}"')
        state = "success"
    _set(node, {MIG_STATE: state})


def _apply(node: str, wanted: str) -> None:
    root = os.environ["DRIVER_ROOT_CTR_PATH"]
    _, found = gpus.driver(root)
    devices = find_mig_devices(_configurations(), wanted, found[0].device)
    if devices is None:
        message = f"Error validating values: selected mig-config not present: {wanted}"
        raise Failed(message)
    made = next(iter(devices), "")  # a stand-in makes devices of one kind only
    mig = gpus.mig(root)
    if made == (f"{mig.devices}x{mig.profile}" if mig else ""):
        return
    paused = paused_labels(_labels(node), MIG_CLIENTS, PAUSED_FOR_MIG)
    _set(node, {MIG_STATE: "pending", **paused})
    for operand in (each for each in MIG_CLIENTS if f"{DEPLOY}{each}" in paused):
        _await_end(node, OPERANDS[operand])
    gpus.divide(root, made)
    _set(node, resumed_labels(_labels(node), PAUSED_FOR_MIG))
    for pod in _pods(node, _VALIDATOR):
        kube.request("DELETE", f"{_collection()}/{pod['metadata']['name']}")


def _configurations() -> kube.Object:
    file = os.environ.get("CONFIG_FILE") or os.environ.get("DEFAULT_CONFIG_FILE", "")
    return dict(yaml.safe_load(Path(file).read_text()) or {})


def _await_end(node: str, app: str) -> None:
    """Wait until an operand has left the node, but not for ever."""
    deadline = time.monotonic() + _MAX_WAIT
    while _pods(node, app):
        if time.monotonic() > deadline:
            message = f"timed out waiting for {app} to shut down"
            raise Failed(message)
        time.sleep(_PAUSE)


def _pods(node: str, app: str) -> list[kube.Object]:
    query = {"labelSelector": f"app={app}", "fieldSelector": f"spec.nodeName={node}"}
    return list(kube.request("GET", _collection(), query=query)["items"])


def _collection() -> str:
    return f"/api/v1/namespaces/{os.environ['DEFAULT_GPU_CLIENTS_NAMESPACE']}/pods"


def _labels(node: str) -> dict[str, str]:
    return _labels_of(kube.request("GET", f"/api/v1/nodes/{node}"))


def _labels_of(node: kube.Object) -> dict[str, str]:
    return dict(node["metadata"].get("labels") or {})


def _set(node: str, labels: dict[str, str]) -> None:
    if labels:
        kube.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})
