"""The process that is a sandbox: start, find and end it; the lock and the record in its directory."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from gpu_provision.sandbox.api import NOT_FOUND, Api, ApiError, ApiResource, Object
from gpu_provision.sandbox.errors import NoAnswerError, SandboxError, SandboxProblem
from gpu_provision.sandbox.state import (
    LOG_FILE,
    Sandbox,
    is_running,
    read_pid,
    read_sandbox,
    sandbox_directory,
    source_digest,
    try_lock,
    wait_until,
)

START_SECONDS = 60.0
END_SECONDS = 15.0
_ANSWER_SECONDS = 30.0
_TRY_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_TAIL = 800
_VERSIONS = ApiResource("config.openshift.io", "v1", "clusterversions")
_POOLS = ApiResource("machineconfiguration.openshift.io", "v1", "machineconfigpools")


def up(fleet: str | Path = "default", *, directory: Path | None = None) -> Sandbox:
    """Start the sandbox of a fleet, or return the one that runs already.

    Args:
        fleet: Name of a built-in fleet, or path of a fleet file.
        directory: Where it keeps its state; by default ``$GPU_PROVISION_SANDBOX_DIR/<name>``, else
            ``$XDG_STATE_HOME/gpu-provision/sandbox/<name>``, else ``~/.local/state/gpu-provision/sandbox/<name>``.

    Raises:
        FleetError: The fleet file has mistakes (GP701 to GP706).
        SandboxError: It did not start (GP710 to GP712), or runs with another fleet or other code (GP713).
        NoAnswerError: It runs and does not answer (GP715).
    """
    home = _directory(fleet, directory)
    with _lifecycle_lock(home):
        sandbox = _wait_for_answer(home) if is_running(home) else None
        if sandbox is None:
            _start(fleet, home)
            sandbox = _wait_for_answer(home)
        if sandbox is None:
            fix = "read its log; 'gpu-provision sandbox reset' starts over with an empty cluster"
            raise _with_log(home, "GP711", "the sandbox ended while it started", fix)
        _check_currency(fleet, sandbox)
        return sandbox


def down(fleet: str | Path = "default", *, directory: Path | None = None) -> bool:
    """End a sandbox and keep its state; False if none was running. Raises SandboxError (GP714)."""
    home = _directory(fleet, directory)
    if not home.is_dir():
        return False
    with _lifecycle_lock(home):
        return _end(home)


def reset(fleet: str | Path = "default", *, directory: Path | None = None) -> None:
    """End a sandbox and forget everything about it. Raises SandboxError (GP712, GP714)."""
    home = _directory(fleet, directory)
    if not home.exists():
        return
    with _lifecycle_lock(home):
        _end(home)
        try:
            shutil.rmtree(home)
        except OSError as error:
            raise _unusable_directory_error(home, error) from error


def find_running(fleet: str | Path = "default", *, directory: Path | None = None) -> Sandbox | None:
    """Return the sandbox of a fleet if it runs and answers."""
    home = _directory(fleet, directory)
    sandbox = read_sandbox(home) if is_running(home) else None
    return sandbox if sandbox is not None and not _connection_problem(sandbox) else None


def write_kubeconfig(sandbox: Sandbox, user: str) -> Path:
    """Return a kubeconfig for a user, who may do what RBAC in the sandbox grants; a new user gets a token."""
    from gpu_provision.sandbox.apiserver import auth  # noqa: PLC0415 - costs the server's own imports

    path = sandbox.directory / f"kubeconfig-{quote(user, safe='')}"
    with _lifecycle_lock(sandbox.directory):
        token = auth.Tokens(sandbox.directory / "tokens.json").token(user)
        authority = sandbox.directory / "certificates" / "ca.crt"
        auth.write_kubeconfig(
            path, url=sandbox.url, authority=authority, token=token, context=sandbox.context, user=user
        )
    return path


def upgrade(sandbox: Sandbox, version: str, *, wait: bool = False) -> None:
    """Let an OpenShift sandbox install a release, as ``oc adm upgrade --to`` does.

    Returns when that has begun; with ``wait`` when every pool that is not paused runs the release.

    Raises:
        SandboxError: It is no OpenShift cluster, or cannot go to that release (GP716).
    """
    import asyncio  # noqa: PLC0415 - with the HTTP client only where it is used

    from gpu_provision.sandbox import client  # noqa: PLC0415

    async def install() -> str:
        async with client.HttpApi(client.load_credentials(sandbox.kubeconfig, sandbox.context)) as api:
            status = (await api.get(_VERSIONS, "version"))["status"]
            known = [each["version"] for each in status["availableUpdates"] or ()]
            if version not in known:
                return f"it runs {status['desired']['version']}, and can be upgraded to: {', '.join(known) or 'none'}"
            await api.patch(_VERSIONS, "version", {"spec": {"desiredUpdate": {"version": version}}})
            while wait and not await _runs_everywhere(api, version):  # noqa: ASYNC110 - it asks, as kubectl would
                await asyncio.sleep(_LOOK_SECONDS)
            return ""

    what, fix = f"the sandbox cannot be upgraded to OpenShift {version}", ""
    try:
        evidence = asyncio.run(install())
    except ApiError as refusal:
        if refusal.code != NOT_FOUND:
            raise
        evidence, fix = "it is no OpenShift cluster", "gpu-provision sandbox up --fleet openshift"
    if evidence:
        where = f"sandbox {sandbox.name}"
        raise SandboxError(SandboxProblem(code="GP716", what=what, where=where, evidence=evidence, fix=fix))


async def _runs_everywhere(api: Api, version: str) -> bool:
    """Whether an update is completed, and every pool that is not paused has it on all nodes."""
    newest = (await api.get(_VERSIONS, "version"))["status"]["history"][0]
    pools, _ = await api.list(_POOLS)
    behind = [pool for pool in pools if not (pool["spec"].get("paused") or _is_updated(pool))]
    return (newest["version"], newest["state"]) == (version, "Completed") and not behind


def _is_updated(pool: Object) -> bool:
    has = {each["type"]: each["status"] for each in pool["status"]["conditions"]}
    is_current = pool["status"]["configuration"]["name"] == pool["spec"]["configuration"]["name"]
    return is_current and has.get("Updated") == "True"


def _directory(fleet: str | Path, directory: Path | None) -> Path:
    if directory is None:
        name = str(fleet)
        if "/" in name or name.endswith((".yaml", ".yml")):
            from gpu_provision.sandbox.fleet_file import load_fleet  # noqa: PLC0415 - YAML only where a file is named

            name = load_fleet(fleet).name
        directory = sandbox_directory(name)
    return directory.absolute()


@contextmanager
def _lifecycle_lock(home: Path) -> Iterator[None]:
    """Keep other processes from starting or ending the same sandbox meanwhile."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        lock = (home.parent / f".{home.name}.lock").open("w", encoding="utf-8")
    except OSError as error:
        raise _unusable_directory_error(home, error) from error
    with lock:
        if not wait_until(lambda: try_lock(lock.fileno()), START_SECONDS):
            what = f"another process has been starting or ending this sandbox for {START_SECONDS:.0f} s"
            raise SandboxError(SandboxProblem(code="GP710", what=what, where=str(home)))
        yield


def _start(fleet: str | Path, home: Path) -> None:
    """Launch the process; it takes its lock before the launcher returns."""
    from gpu_provision.sandbox.fleet_file import load_fleet  # noqa: PLC0415 - YAML only where a sandbox starts

    load_fleet(fleet)  # its problems are better told here than by a process without a terminal
    named = str(Path(fleet).resolve()) if Path(fleet).suffix in {".yaml", ".yml"} else str(fleet)
    command = [sys.executable, "-m", "gpu_provision.sandbox.server", "--detach"]
    command += ["--directory", str(home), "--fleet", named]
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH", "")) if part)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        launched = _launch(command, environment={**os.environ, "PYTHONPATH": path})
    except subprocess.TimeoutExpired:
        raise _not_ready_error(home) from None
    except OSError as error:
        raise _unusable_directory_error(home, error) from error
    if launched.returncode and not is_running(home):
        evidence = launched.stderr.decode(errors="replace").strip()[-_TAIL:]
        what = "the sandbox's process could not be started"
        raise SandboxError(SandboxProblem(code="GP711", what=what, where=str(home), evidence=evidence))


def _launch(command: list[str], *, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # noqa: S603 - our own module
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=START_SECONDS,
        check=False,
    )


def _wait_for_answer(home: Path) -> Sandbox | None:
    """Return the sandbox once it answers; None if its process ends before."""
    wait_until(lambda: not is_running(home) or read_sandbox(home) is not None, START_SECONDS)
    sandbox = read_sandbox(home)
    if not is_running(home):
        return None
    if sandbox is None:
        raise _not_ready_error(home)
    if not wait_until(lambda: not (is_running(home) and _connection_problem(sandbox)), _ANSWER_SECONDS):
        silence = _connection_problem(sandbox)
        if silence and is_running(home):  # a killed process can close its port before it gives up its lock
            what = f"the sandbox runs (process {sandbox.pid}) and does not answer"
            fix = "end it with: gpu-provision sandbox down"
            raise NoAnswerError(SandboxProblem(code="GP715", what=what, where=sandbox.url, evidence=silence, fix=fix))
    return sandbox if is_running(home) else None


def _connection_problem(sandbox: Sandbox) -> str:
    try:
        authority = sandbox.directory / "certificates" / "ca.crt"
        context = ssl.create_default_context(cafile=authority) if authority.exists() else ssl.create_default_context()
        request = urllib.request.Request(f"{sandbox.url}/livez")  # noqa: S310 - the URL is our own record's
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=_TRY_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return ""  # it answers, if only to refuse
    except (OSError, ValueError) as error:
        return str(error)


def _check_currency(fleet: str | Path, sandbox: Sandbox) -> None:
    """Raise SandboxError if the sandbox was started from other code, or from another version of the fleet file."""
    where, what = str(sandbox.directory), ""
    if sandbox.code != source_digest():
        what = "the sandbox was started by other code of gpu-provision than this command is"
    elif Path(fleet).suffix in {".yaml", ".yml"}:
        from gpu_provision.sandbox.fleet import fleet_digest  # noqa: PLC0415 - only for fleet files
        from gpu_provision.sandbox.fleet_file import load_fleet  # noqa: PLC0415 - as above

        if sandbox.fleet != fleet_digest(load_fleet(fleet)):
            where, what = str(fleet), "the sandbox runs with another version of this fleet file"
    if what:
        fix = "gpu-provision sandbox down, then up: the machines keep what they know"
        raise SandboxError(SandboxProblem(code="GP713", what=what, where=where, fix=fix))


def _end(home: Path) -> bool:
    if not is_running(home):
        return False
    wait_until(lambda: read_pid(home) is not None or not is_running(home), _ANSWER_SECONDS)
    for number in (signal.SIGTERM, signal.SIGKILL):
        pid = read_pid(home)
        if pid is not None and is_running(home):
            os.kill(pid, number)
        if wait_until(lambda: not is_running(home), END_SECONDS):
            return True
    what = "the sandbox did not end when asked to"
    raise SandboxError(SandboxProblem(code="GP714", what=what, where=str(home), evidence=f"process {read_pid(home)}"))


def _with_log(home: Path, code: str, what: str, fix: str) -> SandboxError:
    """Return an error with the end of the sandbox's log as evidence."""
    log = home / LOG_FILE
    try:
        evidence = log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()
    except OSError:
        evidence = ""
    return SandboxError(SandboxProblem(code=code, what=what, where=str(log), evidence=evidence, fix=fix))


def _not_ready_error(home: Path) -> SandboxError:
    fix = "try again, or start over with: gpu-provision sandbox reset"
    return _with_log(home, "GP710", f"the sandbox was not ready after {START_SECONDS:.0f} s", fix)


def _unusable_directory_error(home: Path, error: OSError) -> SandboxError:
    fix = "set GPU_PROVISION_SANDBOX_DIR to a directory that you may write"
    what = "the sandbox's directory cannot be used"
    return SandboxError(SandboxProblem(code="GP712", what=what, where=str(home), evidence=str(error), fix=fix))
