"""Local files: check that one can be written before a command starts, and replace one as a whole.

A symlink is followed, as a shell's ``>`` follows it: the file behind the link is replaced, and the link stays. A pipe,
a terminal or a device is written to and never replaced.
"""

from __future__ import annotations

import os
from pathlib import Path

_OWNER_ONLY = 0o600
_OWNERS_FOLDER = 0o700
_BY_UMASK = 0o666


def state_folder() -> Path:
    """Return the folder of the tool's own files: ``$XDG_STATE_HOME/gpu-provision``, below ~/.local/state by default."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "gpu-provision"


def make_state_folder(folder: Path) -> None:
    """Make a folder at or below `state_folder`, which only its owner can enter. Raises OSError.

    A folder of the tool that others can enter, as earlier versions made it, is closed; folders above it are left alone.
    """
    own = state_folder()
    own.parent.mkdir(parents=True, exist_ok=True)
    for each in (own, *reversed(folder.parents), folder):
        if each.is_relative_to(own):
            each.mkdir(mode=_OWNERS_FOLDER, exist_ok=True)
            if each.stat().st_mode & 0o077:
                each.chmod(_OWNERS_FOLDER)


def path_exists(path: Path) -> bool:
    """Return whether something exists there; a folder of another user that forbids the look counts as empty."""
    try:
        return path.exists()
    except OSError:  # also a name that is too long
        return False


def is_file(path: Path) -> bool:
    """Return whether a file exists there, as far as permissions let the tool look."""
    return path_exists(path) and path.is_file()


def check_writable(path: Path) -> None:
    """Raise OSError if a file cannot be written there."""
    import tempfile  # noqa: PLC0415  reading an inventory imports this module, and needs no temporary file

    if path.is_file() or path.is_dir():
        path.open("a").close()
    elif not path.exists():
        tempfile.TemporaryFile(dir=path.parent).close()


def write_atomic(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Replace a file as a whole, or leave it as it was; a text is written as UTF-8. Raises OSError.

    ``private`` gives the file mode 0600; otherwise the umask decides. The draft beside the file has a random name and
    is created exclusively, so that a file or symlink planted in a shared folder is neither followed nor used.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY if private else _BY_UMASK)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if private:
                os.fchmod(descriptor, _OWNER_ONLY)  # an umask may have taken more
            file.write(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
