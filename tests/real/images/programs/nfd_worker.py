"""Node Feature Discovery's worker: reads the machine through its mounts and publishes what it found."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from . import features
from .process import end_when_told, flags, say, seconds, serve

_CONFIG = Path("/etc/kubernetes/node-feature-discovery/nfd-worker.conf")
_FEATURES_D = Path("/etc/kubernetes/node-feature-discovery/features.d")
_HOST = Path("/")
_CLASSES, _FIELDS = ("03", "0b40", "12"), ("class", "vendor")


def main() -> int:
    """Publish features again and again, until told to end."""
    end_when_told()
    options = flags(sys.argv[1:])
    node = os.environ.get("NODE_NAME", "")
    if not node:
        say("unable to get node name: environment variable NODE_NAME is not set")
        return 1
    config = yaml.safe_load(_CONFIG.read_text()) if _CONFIG.exists() else None
    say("Node Feature Discovery Worker", f"configuration: {config}")
    serve(int(options.get("port", "8080")), {"/healthz": lambda: (200, "ok\n")})
    owners = features.owners(options.get("owner-refs", "pod,ds").split(","))
    while True:
        labels, found = discover(_HOST, config or {})
        features.publish(node, node, labels, found, owners)
        time.sleep(seconds(str(_of(config or {}, "core").get("sleepInterval", "60s"))))


def discover(host: Path, config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return labels and features of the machine whose folders are mounted below ``host`` as ``host-sys`` and so on."""
    devices = list(map(_device, sorted((host / "host-sys/bus/pci/devices").iterdir())))
    pci = _of(_of(config, "sources"), "pci")
    classes = tuple(str(each).lower() for each in pci.get("deviceClassWhitelist") or _CLASSES)
    fields = pci.get("deviceLabelFields") or _FIELDS
    shown = [device for device in devices if device["class"].startswith(classes)]
    release, kernel = _os_release(host), _kernel()
    labels = {
        **{f"pci-{'_'.join(device[field] for field in fields)}.present": "true" for device in shown},
        **{f"system-os_release.{key}": value for key, value in release.items()},
        **{f"kernel-version.{key}": value for key, value in kernel.items()},
    }
    labels = {f"feature.node.kubernetes.io/{name}": value for name, value in labels.items()} | _local(host)
    found = {
        "attributes": {"kernel.version": {"elements": kernel}, "system.osrelease": {"elements": release}},
        "flags": {},
        "instances": {"pci.device": {"elements": [{"attributes": device} for device in shown]}},
    }
    return labels, found


def _of(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _device(path: Path) -> dict[str, str]:
    """Return a PCI device's class, as its first four digits, and its vendor and device ids."""
    values = {name: (path / name).read_text().strip().removeprefix("0x") for name in ("class", "vendor", "device")}
    return {**values, "class": values["class"][:4]}


def _os_release(host: Path) -> dict[str, str]:
    lines = (host / "host-etc/os-release").read_text().splitlines()
    told = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines) if value}
    major, _, minor = told.get("VERSION_ID", "").partition(".")
    found = {"ID": told.get("ID"), "VERSION_ID": told.get("VERSION_ID")}
    found |= {"VERSION_ID.major": major, "VERSION_ID.minor": minor}
    return {key: value for key, value in found.items() if value}


def _kernel() -> dict[str, str]:
    full = os.uname().release
    numbers = [*full.partition("-")[0].split("."), "0", "0"]
    return dict(zip(("full", "major", "minor", "revision"), (full, *numbers), strict=False))


def _local(host: Path) -> dict[str, str]:
    """Return what other programs left in features.d, one ``name=value`` on a line."""
    folder = host / str(_FEATURES_D).lstrip("/")
    texts = [path.read_text() for path in sorted(folder.glob("[!.]*")) if path.is_file()]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name if "/" in name else f"feature.node.kubernetes.io/{name}": value for name, _, value in pairs}
