"""Node Feature Discovery's worker: reads the machine through its mounts and publishes what it found."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.sandbox.operand_rules import kernel_labels, os_labels, pci_labels

from . import features
from .process import end_when_told, flags, say, seconds, serve

_CONFIG = Path("/etc/kubernetes/node-feature-discovery/nfd-worker.conf")


def main() -> int:
    """Publish features again and again, until told to end."""
    end_when_told()
    node = os.environ.get("NODE_NAME", "")
    if not node:
        say("unable to get node name: environment variable NODE_NAME is not set")
        return 1
    config = (yaml.safe_load(_CONFIG.read_text()) if _CONFIG.exists() else None) or {}
    say("Node Feature Discovery Worker", f"configuration: {config}")
    serve(int(flags(sys.argv[1:]).get("port", "8080")), {"/healthz": lambda: (200, "ok\n")})
    while True:
        features.publish(node, node, _discover(config))
        time.sleep(seconds(str((config.get("core") or {}).get("sleepInterval", "60s"))))


def _discover(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of the machine whose folders are mounted as ``/host-sys`` and ``/host-etc``."""
    lines = Path("/host-etc/os-release").read_text().splitlines()
    told = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}
    devices = map(_device, sorted(Path("/host-sys/bus/pci/devices").iterdir()))
    return {
        **kernel_labels(os.uname().release),
        **os_labels(told.get("ID", ""), told.get("VERSION_ID", "")),
        **pci_labels(devices, config),
    }


def _device(path: Path) -> dict[str, str]:
    """Return a PCI device's class, as its first four digits, and its vendor and device ids."""
    values = {name: (path / name).read_text().strip().removeprefix("0x") for name in ("class", "vendor", "device")}
    return {**values, "class": values["class"][:4]}
