"""Logs of what tests started, kept in the checkout when a test run fails."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "build" / "test-real"
_directories: list[Path] = []
_KEPT = pytest.StashKey[set[str]]()
_OF_WORKER = "kept_logs"


def remember(directory: Path) -> None:
    """Keep ``*.log`` of this directory if the test run fails."""
    if directory not in _directories:
        _directories.append(directory)


def keep(target: Path) -> Path | None:
    """Copy the remembered logs below a new folder and return that; None if there are none."""
    logs = [log for directory in _directories for log in sorted(directory.rglob("*.log")) if log.is_file()]
    for log in logs:
        copy = target / _name(log.parent) / log.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, copy)
    return target if logs else None


def _name(directory: Path) -> str:
    """Tell directories of one test run apart: by the last parts of their paths."""
    return "-".join(directory.parts[-2:])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the logs of a run with a failure; a worker tells the process that people see."""
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    if session.testsfailed and (kept := keep(FOLDER / moment)):
        session.config.stash.setdefault(_KEPT, set()).add(str(kept))
        getattr(session.config, "workeroutput", {})[_OF_WORKER] = str(kept)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear it from a worker of pytest-xdist."""
    if kept := getattr(node, "workeroutput", {}).get(_OF_WORKER):
        node.config.stash.setdefault(_KEPT, set()).add(kept)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where they are."""
    for kept in sorted(terminalreporter.config.stash.get(_KEPT, ())):
        terminalreporter.write_line(f"logs of the programs that tests started: {kept}")
