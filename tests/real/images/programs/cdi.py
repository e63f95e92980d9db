"""Container Device Interface: which files make a GPU in a container, written for the container runtime.

The files are JSON, which YAML includes, so that the programs here need no YAML to read them.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import gpus

DIRECTORY = Path("/var/run/cdi")


def specification(kind: str, devices: Mapping[str, Iterable[str]], inside: str, host: str) -> dict[str, Any]:
    """Return the specification of a kind of device.

    Args:
        kind: Vendor and class, such as ``nvidia.com/gpu``.
        devices: Name of each device -> its device nodes below ``/dev``.
        inside: The driver's root as this process sees it.
        host: The same as the host sees it.
    """
    shared = _nodes(gpus.CONTROL_DEVICES, inside, host)
    mounts = [_mount(path, host) for path in (gpus.SMI, gpus.NVML, gpus.CUDA) if Path(inside, path).exists()]
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": _nodes(nodes, inside, host)}}
            for name, nodes in devices.items()
        ],
        "containerEdits": {"deviceNodes": shared, "mounts": mounts, "env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }


def _nodes(names: Iterable[str], inside: str, host: str) -> list[dict[str, str]]:
    return [
        {"path": f"/dev/{name}", "hostPath": f"{host.rstrip('/')}/dev/{name}"}
        for name in names
        if _is_node(inside, name)
    ]


def _is_node(inside: str, name: str) -> bool:
    try:
        return stat.S_ISCHR(Path(inside, "dev", name).stat().st_mode)
    except OSError:
        return False


def _mount(path: str, host: str) -> dict[str, Any]:
    options = ["ro", "nosuid", "nodev", "bind"]
    return {"hostPath": f"{host.rstrip('/')}/{path}", "containerPath": f"/{path}", "options": options}


def write(path: Path, specified: Mapping[str, Any]) -> None:
    """Write a specification beside and rename it: a reader sees all of it or nothing."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(specified, indent=2))
    partial.replace(path)
