"""Adds the GPUs that a container asks for to its bundle's config.json, by the CDI files of the host.

Where CDI is off, the toolkit leaves files of the same form beside this program.

Runs on the host, with the host's Python: the only program here that does, so it stands alone.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"), Path(__file__).with_name("devices"))
_PREFIX = "cdi.k8s.io/"
_DEFAULT_KIND = "management.nvidia.com/gpu"
_NOTHING = {"", "void", "none"}


class Unresolvable(Exception):
    """A device that no CDI file of the host has."""


def main(mode: str, arguments: list[str]) -> int:
    """Change the bundle that runc's arguments name."""
    bundle = next((after for flag, after in itertools.pairwise(arguments) if flag in {"--bundle", "-b"}), ".")
    config = Path(bundle, "config.json")
    container = json.loads(config.read_text())
    wanted = list(requested(container))
    if not wanted:
        return 0
    try:
        for edit in edits(wanted, _DIRECTORIES):
            apply(container, edit)
    except (Unresolvable, OSError) as problem:
        message = f"failed to create NVIDIA Container Runtime in mode {mode}: {problem}"
        sys.stderr.write(f"{message}\n")
        _log(arguments, message)
        return 1
    config.write_text(json.dumps(container))
    return 0


def requested(container: dict[str, Any]) -> Iterator[str]:
    """Yield the qualified names of the devices that a container asks for: by annotation, else by environment."""
    annotations = container.get("annotations") or {}
    named = [device for key, value in annotations.items() if key.startswith(_PREFIX) for device in value.split(",")]
    if named:
        yield from named
        return
    environment = dict(pair.split("=", 1) for pair in container["process"].get("env", []))
    visible = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    if visible not in _NOTHING:
        yield from (name if "=" in name else f"{_DEFAULT_KIND}={name}" for name in visible.split(","))


def edits(wanted: Iterable[str], directories: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the edits that make these devices; those that a kind's devices share come once."""
    known = {spec["kind"]: spec for folder in directories for spec in _specifications(folder)}
    missing, shared = [], set()
    for name in wanted:
        kind, _, device = name.partition("=")
        spec = known.get(kind, {"devices": []})
        found = next((each for each in spec["devices"] if each["name"] == device), None)
        if found is None:
            missing.append(name)
            continue
        if kind not in shared:
            shared.add(kind)
            yield spec.get("containerEdits", {})
        yield found["containerEdits"]
    if missing:
        message = f"could not apply CDI modifier: unresolvable CDI devices {', '.join(missing)}"
        raise Unresolvable(message)


def _specifications(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("[!.]*")):
        try:
            yield json.loads(path.read_text())
        except (ValueError, OSError):
            continue


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
