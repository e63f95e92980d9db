"""The process that is a sandbox: start, find and end it; the lock and the record in its directory."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

from gpu_provision.model.findings import Finding, ProvisionError, Unreachable
from gpu_provision.sandbox.hosts import sandbox_directory

_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A running sandbox.

    Attributes:
        directory: Where it keeps its state.
        kubeconfig: For kubectl and every other client; ``context`` is the context in it.
        pid: The process that is the sandbox.
    """

    name: str
    directory: Path
    kubeconfig: Path
    context: str
    url: str
    pid: int


def locks(file: int) -> bool:
    """Take the lock on an open file; False if somebody else has it."""
    # Not a blocking lock: under gevent that would stop every other greenlet as well.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def held(home: Path) -> bool:
    """Tell whether a process that is this sandbox lives."""
    try:
        with (home / LOCK_FILE).open("r", encoding="utf-8") as lock:
            return not locks(lock.fileno())
    except OSError:
        return False


def recorded(home: Path) -> Sandbox | None:
    """Return the sandbox as its record describes it; None if there is no such record."""
    told = record(home)
    try:
        return Sandbox(
            name=str(told["name"]),
            directory=home,
            kubeconfig=Path(str(told["kubeconfig"])),
            context=str(told["context"]),
            url=str(told["url"]),
            pid=int(str(told["pid"])),
        )
    except (KeyError, ValueError):
        return None


def record(home: Path) -> dict[str, object]:
    """Return the record that a sandbox writes once it is ready; empty if there is none."""
    try:
        told = json.loads((home / READY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True


def holder(home: Path) -> int | None:
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
    for path in sorted(package.rglob("*.py")):
        found = zlib.crc32(path.read_bytes(), zlib.crc32(str(path.relative_to(package)).encode(), found))
    return f"{found:08x}"


READY_FILE = "sandbox.json"
LOCK_FILE = "lock"
LOG_FILE = "sandbox.log"


def context_name(name: str) -> str:
    """Return the kubeconfig's context of a sandbox."""
    return "sandbox" if name == "default" else f"sandbox-{name}"


__all__ = ["Sandbox", "down", "kubeconfig_of", "reset", "running", "up"]

START_SECONDS = 60.0
END_SECONDS = 15.0
_ANSWER_SECONDS = 5.0
_TAIL = 800


def up(fleet: str | Path = "default", *, directory: Path | None = None) -> Sandbox:
    """Start the sandbox of a fleet, or return the one that runs already.

    Args:
        fleet: Name of a built-in fleet, or path of a fleet file.
        directory: Where it keeps its state; by default ``$GPU_PROVISION_SANDBOX_DIR/<name>``, else
            ``$XDG_STATE_HOME/gpu-provision/sandbox/<name>``, else ``~/.local/state/gpu-provision/sandbox/<name>``.

    Raises:
        InvalidInventory: The fleet file has mistakes (GP701 to GP706).
        ProvisionError: It did not start (GP710 to GP712), or runs with another fleet or other code (GP713).
        Unreachable: It runs and does not answer (GP715).
    """
    home = _home(fleet, directory)
    with _alone(home):
        sandbox = _awaited(home) if held(home) else None
        if sandbox is None:
            _start(fleet, home)
            sandbox = _awaited(home)
        if sandbox is None:
            raise ProvisionError(_died(home))
        _check_code(home)
        _check_fleet(fleet, home)
        return sandbox


def down(fleet: str | Path = "default", *, directory: Path | None = None) -> bool:
    """End a sandbox and keep its state; False if none was running. Raises ProvisionError (GP714)."""
    home = _home(fleet, directory)
    if not home.is_dir():
        return False
    with _alone(home):
        return _end(home)


def reset(fleet: str | Path = "default", *, directory: Path | None = None) -> None:
    """End a sandbox and forget everything about it. Raises ProvisionError (GP712, GP714)."""
    home = _home(fleet, directory)
    if not home.exists():
        return
    with _alone(home):
        _end(home)
        try:
            shutil.rmtree(home)
        except OSError as error:
            raise _unusable(home, error) from error


def running(fleet: str | Path = "default", *, directory: Path | None = None) -> Sandbox | None:
    """Return the sandbox of a fleet if it runs and answers."""
    home = _home(fleet, directory)
    sandbox = recorded(home) if held(home) else None
    return sandbox if sandbox is not None and not _silence(sandbox) else None


def kubeconfig_of(sandbox: Sandbox, user: str) -> Path:
    """Return a kubeconfig for a user, who may do what RBAC in the sandbox grants; a new user gets a token."""
    from gpu_provision.sandbox.apiserver import credentials  # noqa: PLC0415 - costs the server's own imports
    from gpu_provision.sandbox.apiserver.credentials import Tokens  # noqa: PLC0415 - as above

    path = sandbox.directory / f"kubeconfig-{quote(user, safe='')}"
    with _alone(sandbox.directory):
        token = Tokens(sandbox.directory / "tokens.json").ensure(user)
        authority = sandbox.directory / "certificates" / "ca.crt"
        credentials.write_kubeconfig(
            path, url=sandbox.url, authority=authority, token=token, context=sandbox.context, user=user
        )
    return path


def _home(fleet: str | Path, directory: Path | None) -> Path:
    return (directory or sandbox_directory(_name(fleet))).absolute()


def _name(fleet: str | Path) -> str:
    """Return the sandbox's name without reading YAML where the fleet is named, not a file."""
    text = str(fleet)
    if "/" not in text and not text.endswith((".yaml", ".yml")):
        return text
    from gpu_provision.sandbox.fleet import load_fleet  # noqa: PLC0415 - YAML only where a file is named

    return load_fleet(fleet).name


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Let nobody else start or end the same sandbox meanwhile."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        lock = (home.parent / f".{home.name}.lock").open("w", encoding="utf-8")
    except OSError as error:
        raise _unusable(home, error) from error
    with lock:
        if not eventually(lambda: locks(lock.fileno()), START_SECONDS):
            what = f"somebody else has been starting or ending this sandbox for {START_SECONDS:.0f} s"
            raise ProvisionError(Finding(code="GP710", what=what, where=str(home)))
        yield


def _start(fleet: str | Path, home: Path) -> None:
    """Launch the process; it takes its lock before the launcher returns."""
    from gpu_provision.sandbox.fleet import load_fleet  # noqa: PLC0415 - YAML only where a sandbox starts

    load_fleet(fleet)  # its findings are better told here than by a process without a terminal
    named = str(Path(fleet).resolve()) if Path(fleet).suffix in {".yaml", ".yml"} else str(fleet)
    command = [sys.executable, "-m", "gpu_provision.sandbox", "--detach", "--directory", str(home), "--fleet", named]
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH", "")) if part)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        launched = subprocess.run(  # noqa: S603 - our own module
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            timeout=START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProvisionError(_not_ready(home)) from None
    except OSError as error:
        raise _unusable(home, error) from error
    if launched.returncode and not held(home):
        evidence = launched.stderr.decode(errors="replace").strip()[-_TAIL:]
        what = "the sandbox's process could not be started"
        raise ProvisionError(Finding(code="GP711", what=what, where=str(home), evidence=evidence))


def _awaited(home: Path) -> Sandbox | None:
    """Return the sandbox once it answers; None if its process ends before."""
    eventually(lambda: not held(home) or recorded(home) is not None, START_SECONDS)
    sandbox = recorded(home)
    if not held(home):
        return None
    if sandbox is None:
        raise ProvisionError(_not_ready(home))
    eventually(lambda: not held(home) or not _silence(sandbox), _ANSWER_SECONDS)
    silence = _silence(sandbox)
    if not silence:
        return sandbox
    if not held(home):
        return None
    what = f"the sandbox runs (process {sandbox.pid}) and does not answer"
    fix = "end it with: gpu-provision sandbox down"
    raise Unreachable(Finding(code="GP715", what=what, where=sandbox.url, evidence=silence, fix=fix))


def _silence(sandbox: Sandbox) -> str:
    """Return why the API server does not answer; empty if it does."""
    try:
        authority = sandbox.directory / "certificates" / "ca.crt"
        context = ssl.create_default_context(cafile=authority) if authority.exists() else ssl.create_default_context()
        request = urllib.request.Request(f"{sandbox.url}/livez")  # noqa: S310 - the URL is our own record's
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=_ANSWER_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return ""  # it answers, if only to refuse
    except (OSError, ValueError) as error:
        return str(error)


def _check_code(home: Path) -> None:
    """Complain if another version of this tool has started the sandbox, or if its code was changed since."""
    if record(home).get("code") != source_digest():
        what = "the sandbox was started by other code of gpu-provision than this command is"
        raise ProvisionError(Finding(code="GP713", what=what, where=str(home), fix=_ANEW))


_ANEW = "gpu-provision sandbox down, then up: the machines keep what they know"


def _check_fleet(fleet: str | Path, home: Path) -> None:
    """Complain if the sandbox runs another version of the fleet file than the one that is there now."""
    if Path(fleet).suffix not in {".yaml", ".yml"}:
        return
    from gpu_provision.sandbox.fleet import fleet_digest, load_fleet  # noqa: PLC0415 - only for fleet files

    if record(home).get("fleet") != fleet_digest(load_fleet(fleet)):
        what = "the sandbox runs with another version of this fleet file"
        raise ProvisionError(Finding(code="GP713", what=what, where=str(fleet), fix=_ANEW))


def _end(home: Path) -> bool:
    if not held(home):
        return False
    eventually(lambda: holder(home) is not None or not held(home), _ANSWER_SECONDS)
    for number in (signal.SIGTERM, signal.SIGKILL):
        pid = holder(home)
        if pid is not None and held(home):
            os.kill(pid, number)
        if eventually(lambda: not held(home), END_SECONDS):
            return True
    what = "the sandbox did not end when asked to"
    raise ProvisionError(Finding(code="GP714", what=what, where=str(home), evidence=f"process {holder(home)}"))


def _tail(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()
    except OSError:
        return ""


def _died(home: Path) -> Finding:
    log = home / LOG_FILE
    what = "the sandbox ended while it started"
    fix = "read its log; 'gpu-provision sandbox reset' begins anew with an empty cluster"
    return Finding(code="GP711", what=what, where=str(log), evidence=_tail(log), fix=fix)


def _not_ready(home: Path) -> Finding:
    log = home / LOG_FILE
    what = f"the sandbox was not ready after {START_SECONDS:.0f} s"
    fix = "try again, or begin anew with: gpu-provision sandbox reset"
    return Finding(code="GP710", what=what, where=str(log), evidence=_tail(log), fix=fix)


def _unusable(home: Path, error: OSError) -> ProvisionError:
    fix = "set GPU_PROVISION_SANDBOX_DIR to a directory that you may write"
    what = "the sandbox's directory cannot be used"
    return ProvisionError(Finding(code="GP712", what=what, where=str(home), evidence=str(error), fix=fix))
