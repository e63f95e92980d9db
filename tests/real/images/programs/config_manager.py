"""The config-manager: copies the configuration that the node's label names, and signals a process of its pod."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from . import kube
from .process import end_when_told, say


class Failed(Exception):
    """Why there is no configuration, or no process to signal."""


def main() -> int:
    end_when_told()
    last: str | None = None
    try:
        for chosen in _choices():
            if chosen == last:
                continue
            _copy(chosen)
            if os.environ.get("ONESHOT") == "true":
                return 0
            if last is not None:  # the first one is there from the start
                _signal(os.environ["PROCESS_TO_SIGNAL"], int(os.environ["SIGNAL"]))
            last = chosen
    except (Failed, kube.ApiError, OSError) as problem:
        say(f"error: {problem}")
    return 1


def _choices() -> Iterator[str]:
    """Yield the value of the node's label at each change of the node, by a watch."""
    label, default = os.environ["NODE_LABEL"], os.environ.get("DEFAULT_CONFIG", "")
    query = {"fieldSelector": f"metadata.name={os.environ['NODE_NAME']}"}
    while True:
        for kind, node in kube.watch("/api/v1/nodes", query):
            if kind in {"ADDED", "MODIFIED"}:
                yield (node["metadata"].get("labels") or {}).get(label) or default


def _copy(chosen: str) -> None:
    source = Path(os.environ["CONFIG_FILE_SRCDIR"], chosen)
    if chosen and not source.is_file():
        message = f"specified config {chosen} does not exist"
        raise Failed(message)
    Path(os.environ["CONFIG_FILE_DST"]).write_text(source.read_text() if chosen else "")
    say(f"Updating to config: {chosen or '(empty)'}")


def _signal(name: str, number: int) -> None:
    """Signal a process by its name, which the kernel cuts to 15 characters. The pod shares its processes."""
    pids = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm") if _name_of(path) == name[:15]]
    if not pids:
        message = f"no process {name} to signal"
        raise Failed(message)
    os.kill(pids[0], number)
    say(f"Successfully sent signal {number} to {name}")


def _name_of(comm: Path) -> str:
    try:
        return comm.read_text().strip()
    except OSError:  # it has ended
        return ""
