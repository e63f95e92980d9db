"""The state of a sandbox on disk: its directory, the lock of its process, and the record of a running one."""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

DIRECTORY_VARIABLE = "GPU_PROVISION_SANDBOX_DIR"
READY_FILE, LOCK_FILE, LOG_FILE = "sandbox.json", "lock", "sandbox.log"
_PAUSE = 0.05


def sandbox_directory(fleet: str = "default") -> Path:
    """Return where a sandbox keeps its state; see docs/sandbox.md."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    if named:
        return Path(named) / fleet
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "gpu-provision/sandbox" / fleet


def replace_file(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file as a whole, or leave it as it was; ``private`` lets its owner alone read it. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A running sandbox.

    Attributes:
        directory: Where it keeps its state.
        kubeconfig: For kubectl and every other client; ``context`` is the context in it.
        pid: The process that is the sandbox.
        fleet: Digest of the fleet that it runs with.
        code: Digest of the program files that it was started from.
    """

    name: str
    directory: Path
    kubeconfig: Path
    context: str
    url: str
    pid: int
    fleet: str = ""
    code: str = ""


def try_lock(file: int) -> bool:
    """Take the lock on an open file; False if another process has it."""
    # Not a blocking lock: under gevent that would stop every other greenlet as well.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_running(home: Path) -> bool:
    """Tell whether a process that is this sandbox lives."""
    try:
        with (home / LOCK_FILE).open("r", encoding="utf-8") as lock:
            return not try_lock(lock.fileno())
    except OSError:
        return False


def read_sandbox(home: Path) -> Sandbox | None:
    """Return the sandbox as its record describes it; None if there is no such record."""
    try:
        record = json.loads((home / READY_FILE).read_text(encoding="utf-8"))
        return Sandbox(**{**record, "directory": home, "kubeconfig": Path(record["kubeconfig"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_sandbox(sandbox: Sandbox) -> None:
    """Write the record of a sandbox that is ready."""
    record = {**asdict(sandbox), "directory": str(sandbox.directory), "kubeconfig": str(sandbox.kubeconfig)}
    replace_file(sandbox.directory / READY_FILE, json.dumps(record, indent=1))


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True


def read_pid(home: Path) -> int | None:
    """Return the process that holds the lock; None if it has not said so yet."""
    try:
        return int((home / LOCK_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@cache
def source_digest() -> str:
    """Return what changes when a program file of the sandbox does, read once in a process."""
    package = Path(__file__).parent
    found = 0
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.yaml")]):
        found = zlib.crc32(path.read_bytes(), zlib.crc32(str(path.relative_to(package)).encode(), found))
    return f"{found:08x}"


def context_name(name: str) -> str:
    """Return the kubeconfig's context of a sandbox."""
    return "sandbox" if name == "default" else f"sandbox-{name}"
