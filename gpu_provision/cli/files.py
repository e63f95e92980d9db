"""Files that options name: whether they can be written, before anything is done; and written as a whole.

What is no file, such as a pipe, a terminal or a device, is written to, and never replaced.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_OWNER_ONLY = 0o600


def is_there(path: Path) -> bool:
    """Whether something is there, as far as we may look: a folder of somebody else shows nothing."""
    try:
        return path.exists()
    except OSError:  # also a name that is too long
        return False


def is_file(path: Path) -> bool:
    """Whether a file is there, as far as we may look."""
    return is_there(path) and path.is_file()


def try_place(path: Path) -> None:
    """Raise OSError if a file cannot be written there."""
    if path.is_file() or path.is_dir():
        path.open("a").close()
    elif not path.exists():
        tempfile.TemporaryFile(dir=path.parent).close()


def put(path: Path, text: str, *, private: bool = False) -> None:
    """Write a file as a whole, or leave it as it was; ``private`` lets only its owner read it. Raises OSError."""
    data = text.encode("utf-8", "replace")
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.touch(mode=_OWNER_ONLY if private else 0o666)
        new.write_bytes(data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
