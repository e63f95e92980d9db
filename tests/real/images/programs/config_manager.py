"""The device plugin's side-car: puts the configuration that the node's label names where the plugin reads it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from . import kube
from .process import end_when_told, say

_PAUSE = 1.0


def main() -> int:
    """Put the configuration in place once, or whenever the node's label changes, until told to end."""
    end_when_told()
    node = os.environ.get("NODE_NAME", "")
    label = os.environ.get("NODE_LABEL", "nvidia.com/device-plugin.config")
    before: str | None = None
    while True:
        try:
            for event, item in kube.watch("/api/v1/nodes", {"fieldSelector": f"metadata.name={node}"}):
                if event == "SYNCED":
                    continue
                chosen = (item["metadata"].get("labels") or {}).get(label, os.environ.get("DEFAULT_CONFIG", ""))
                if chosen != before:
                    update(chosen)
                    before = chosen
                if os.environ.get("ONESHOT") == "true":
                    return 0
        except FileNotFoundError as problem:
            say(f"error: {problem}")
            return 1
        except (kube.ApiError, OSError) as problem:
            say(f"failed to follow node {node}: {problem}")
            time.sleep(_PAUSE)


def update(chosen: str) -> None:
    """Link a configuration to the place where it is read, and signal who reads it. Raises FileNotFoundError."""
    source = Path(os.environ.get("CONFIG_FILE_SRCDIR", "/available-configs"), chosen)
    target = Path(os.environ.get("CONFIG_FILE_DST", "/config/config.yaml"))
    if chosen and not source.exists():
        message = f"specified config {chosen} does not exist"
        raise FileNotFoundError(message)
    say(f"Updating to config: {chosen or '(empty)'}")
    target.unlink(missing_ok=True)
    if chosen:
        target.symlink_to(source)
    else:
        target.write_text("")
    if os.environ.get("SEND_SIGNAL") == "true":
        _signal(os.environ.get("PROCESS_TO_SIGNAL", "nvidia-device-plugin"), int(os.environ.get("SIGNAL", "1")))


def _signal(program: str, number: int) -> None:
    for path in Path("/proc").glob("[0-9]*/comm"):
        if path.read_text().strip() == program[:15]:
            say(f"Sending signal '{signal.Signals(number).name}' to '{program}'")
            os.kill(int(path.parent.name), number)
