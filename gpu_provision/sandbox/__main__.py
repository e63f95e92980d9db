"""``python -m gpu_provision.sandbox``: run a sandbox in the foreground, or leave it running in the background."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

from gpu_provision.model.findings import ProvisionError
from gpu_provision.sandbox.fleet import Fleet, load_fleet
from gpu_provision.sandbox.hosts import sandbox_directory
from gpu_provision.sandbox.process import LOCK_FILE, LOG_FILE, READY_FILE, eventually, locks

ALREADY_RUNNING = 3
_LONGEST_LOG = 5_000_000
_LOOKERS_SECONDS = 0.5  # whoever asks whether a sandbox runs holds the lock for a moment


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_provision.sandbox", description=__doc__)
    parser.add_argument("--fleet", default="default", help="a fleet file, or the name of a built-in fleet")
    parser.add_argument("--nodes", type=int, help="instead of a fleet: this many GPU nodes, for benchmarks")
    parser.add_argument("--speed", type=float, help="divide all durations of the simulation by this")
    parser.add_argument("--directory", type=Path, help="where the sandbox keeps its state")
    parser.add_argument("--port", type=int, default=0, help="port of the API server; 0 for the one of last time")
    parser.add_argument("--detach", action="store_true", help="go on in the background; output goes to the log file")
    return parser.parse_args(argv)


def _fleet(arguments: argparse.Namespace) -> Fleet:
    fleet = load_fleet(f"nodes-{arguments.nodes}" if arguments.nodes else arguments.fleet)
    if arguments.speed:
        fleet = replace(fleet, timings=replace(fleet.timings, speed=arguments.speed))
    return fleet


def _lock(directory: Path) -> IO[str] | None:
    """Return the lock that a running sandbox holds for as long as it lives; None if another one holds it."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (directory / LOCK_FILE).open("a+", encoding="utf-8")
    if eventually(lambda: locks(lock.fileno()), _LOOKERS_SECONDS):
        lock.truncate(0)
        return lock
    lock.close()
    return None


def _detach(directory: Path) -> None:
    """Go on in a process of its own, without a terminal; the lock goes with it."""
    log = directory / LOG_FILE
    if log.exists() and log.stat().st_size > _LONGEST_LOG:
        log.replace(log.with_suffix(".log.1"))
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)


def main(argv: list[str]) -> int:
    """Run a sandbox until it is asked to end."""
    arguments = _arguments(argv)
    try:
        fleet = _fleet(arguments)
    except ProvisionError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    directory = (arguments.directory or sandbox_directory(fleet.name)).resolve()
    lock = _lock(directory)
    if lock is None:
        sys.stderr.write(f"a sandbox is already running in {directory}\n")
        return ALREADY_RUNNING
    with lock:
        (directory / READY_FILE).unlink(missing_ok=True)
        if arguments.detach:
            _detach(directory)
        else:
            sys.stderr.write(f"export KUBECONFIG={directory / 'kubeconfig'}\n")
        lock.write(str(os.getpid()))
        lock.flush()
        return _serve(directory, fleet, arguments.port)


def _serve(directory: Path, fleet: Fleet, port: int) -> int:
    # The API server costs half a second to import; whoever asks for help or makes a mistake need not wait for it.
    from gpu_provision.sandbox.daemon import run_sandbox  # noqa: PLC0415 - see above

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(run_sandbox(directory, fleet, port=port))
    except Exception:
        # Told while the lock is held: whoever waits for the sandbox's end reads the log then.
        logging.getLogger("gpu_provision.sandbox").exception("the sandbox ended")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
