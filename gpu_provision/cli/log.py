"""The log file: tracebacks of internal errors, readable by their owner alone."""

from __future__ import annotations

import os
import traceback
from datetime import UTC, datetime
from pathlib import Path

from gpu_provision import files
from gpu_provision.model.visible import visible


def path() -> Path:
    """Return ``$XDG_STATE_HOME/gpu-provision/gpu-provision.log``, below ~/.local/state by default."""
    return files.state_folder() / "gpu-provision.log"


def keep(error: BaseException, *, command: str) -> Path | None:
    """Append an error's traceback; return the file, or None if it cannot be written."""
    file = path()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = f"{now} gpu-provision {command}\n{''.join(traceback.format_exception(error))}\n"
    try:
        files.make_state_folder(file.parent)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor with its own mode
            stream.write(visible(entry))
    except OSError:
        return None
    return file
