"""Logs of what tests started, kept in the checkout when a test run fails."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "build" / "test-real"
_directories: list[Path] = []
_KEPT = pytest.StashKey[Path]()


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
    """Keep the logs of a run with a failure."""
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    if session.testsfailed and (kept := keep(FOLDER / moment)):
        session.config.stash[_KEPT] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where they are."""
    if kept := terminalreporter.config.stash.get(_KEPT, None):
        terminalreporter.write_line(f"logs of the programs that tests started: {kept}")
