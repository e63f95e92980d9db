"""Logs of what tests started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.real import kept_logs


@pytest.fixture
def plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of a control plane that ended."""
    monkeypatch.setattr(kept_logs, "_directories", [])
    directory = tmp_path / "some-test0" / "plane"
    (directory / "etcd").mkdir(parents=True)
    (directory / "kube-apiserver.log").write_text("it stopped")
    (directory / "audit.log").write_text("{}")
    (directory / "etcd" / "data").write_text("large")
    kept_logs.remember(directory)
    kept_logs.remember(directory)
    return directory


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("failed", [0, 2])
def test_a_test_run_that_fails_keeps_its_logs(failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By test and directory, and says where; one that passes keeps nothing."""
    monkeypatch.setattr(kept_logs, "FOLDER", tmp_path / "kept")
    config, said = SimpleNamespace(stash=pytest.Stash()), list[str]()
    session: Any = SimpleNamespace(testsfailed=failed, config=config)
    terminal: Any = SimpleNamespace(write_line=said.append, config=config)
    kept_logs.pytest_sessionfinish(session)
    kept_logs.pytest_terminal_summary(terminal)
    kept = {file.name: file.parent.name for file in (tmp_path / "kept").rglob("*") if file.is_file()}
    assert kept == (dict.fromkeys(("kube-apiserver.log", "audit.log"), "some-test0-plane") if failed else {})
    assert [str(tmp_path / "kept") in line for line in said] == ([True] if failed else [])


@pytest.mark.usefixtures("plane")
def test_what_a_worker_kept_is_told_by_the_process_that_people_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_logs, "FOLDER", tmp_path / "kept")
    worker: Any = SimpleNamespace(stash=pytest.Stash(), workeroutput={})
    session: Any = SimpleNamespace(testsfailed=1, config=worker)
    kept_logs.pytest_sessionfinish(session)
    controller, said = SimpleNamespace(stash=pytest.Stash()), list[str]()
    kept_logs.pytest_testnodedown(SimpleNamespace(config=controller, workeroutput=worker.workeroutput))
    terminal: Any = SimpleNamespace(write_line=said.append, config=controller)
    kept_logs.pytest_terminal_summary(terminal)
    assert [str(tmp_path / "kept") in line for line in said] == [True]
