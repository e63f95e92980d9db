"""Adds the GPUs that a container asks for to its bundle's config.json, by the file that the toolkit has left beside it.

Runs on the host, with the host's Python: the only program here that does, so it stands alone.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_DEVICES = Path(__file__).with_name("devices") / "management.nvidia.com-gpu.json"
_NOTHING = {"", "void", "none"}


class Unresolvable(Exception):
    """A device that the toolkit has not named."""


def main(mode: str, arguments: list[str]) -> int:
    """Change the bundle that runc's arguments name."""
    bundle = next((after for flag, after in itertools.pairwise(arguments) if flag in {"--bundle", "-b"}), ".")
    config = Path(bundle, "config.json")
    container = json.loads(config.read_text())
    visible = dict(pair.split("=", 1) for pair in container["process"].get("env", [])).get("NVIDIA_VISIBLE_DEVICES", "")
    if visible in _NOTHING:
        return 0
    try:
        for edit in edits(visible.split(","), _DEVICES):
            apply(container, edit)
    except (Unresolvable, OSError) as problem:
        message = f"failed to create NVIDIA Container Runtime in mode {mode}: {problem}"
        sys.stderr.write(f"{message}\n")
        _log(arguments, message)
        return 1
    config.write_text(json.dumps(container))
    return 0


def edits(wanted: Sequence[str], file: Path) -> Iterator[dict[str, Any]]:
    """Yield the edits that make these devices; those that the devices share come first."""
    known: dict[str, Any] = (
        json.loads(file.read_text()) if file.exists() else {"kind": "management.nvidia.com/gpu", "devices": []}
    )
    by_name = {each["name"]: each["containerEdits"] for each in known["devices"]}
    wanted = [_without_instance(name) for name in wanted]
    missing = [f"{known['kind']}={name}" for name in wanted if name not in by_name]
    if missing:
        message = f"could not apply CDI modifier: unresolvable CDI devices {', '.join(missing)}"
        raise Unresolvable(message)
    yield known["containerEdits"]
    yield from (by_name[name] for name in wanted)


def _without_instance(name: str) -> str:
    """Return the GPU of a MIG device, which has no device node of its own here: ``MIG-GPU-5ba7/1/0`` is of GPU-5ba7."""
    return name.removeprefix("MIG-").partition("/")[0]


def apply(container: dict[str, Any], edit: dict[str, Any]) -> None:
    """Make one edit. Raises OSError if the host lacks a device node that it names."""
    linux = container.setdefault("linux", {})
    for node in edit.get("deviceNodes", []):
        status = Path(node["hostPath"]).stat()
        numbers = {"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
        device = {"path": node["path"], "type": "c", "fileMode": stat.S_IMODE(status.st_mode), "uid": 0, "gid": 0}
        others = [each for each in linux.get("devices") or [] if each["path"] != node["path"]]
        linux["devices"] = [*others, {**device, **numbers}]
        rules = linux.setdefault("resources", {}).setdefault("devices", [])
        rules.append({"allow": True, "type": "c", "access": "rwm", **numbers})
    for mount in edit.get("mounts", []):
        bind = {"type": "bind", "options": mount["options"], "source": mount["hostPath"]}
        container.setdefault("mounts", []).append({"destination": mount["containerPath"], **bind})
    container["process"].setdefault("env", []).extend(edit.get("env", []))


def _log(arguments: list[str], message: str) -> None:
    """Say it where containerd looks for runc's last words."""
    for flag, path in itertools.pairwise(arguments):
        if flag == "--log":
            with Path(path).open("a") as log:
                log.write(json.dumps({"level": "error", "msg": message, "time": datetime.now(UTC).isoformat()}) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
