"""What starts real programs for tests, as far as no test that uses it would fail: it would skip, leak or forget."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.real import binaries, kept_logs, processes
from tests.real.control_plane import given
from tests.real.processes import Program, await_ready, free_port, listening

CHECKOUT = Path(__file__).resolve().parents[2]
SERVER = "import http.server, sys; http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), None).serve_forever()"
PARENT = """\
import sys, time
from pathlib import Path
from tests.real.processes import process
with process(Path(sys.argv[1]), ["sleep", "1000"]) as child:
    print(child.pid, flush=True)
    time.sleep(1000)
"""


def test_kubebuilder_assets_is_the_only_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of different versions are not mixed; tests say what the folder lacks."""
    (tmp_path / "kube-apiserver").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert binaries.binary("kube-apiserver") == tmp_path / "kube-apiserver"
    lacking = f"KUBEBUILDER_ASSETS={tmp_path} has no kube-scheduler"
    assert binaries.missing("kube-apiserver", "kube-scheduler") == lacking


def test_the_cache_outlives_a_test_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests have an XDG folder of their own; without the cache, all that is real would be skipped."""
    assert not binaries.cache().is_relative_to(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize(("word", "code"), [("--help", 0), ("kube-apisrver", 2)])
def test_a_question_or_a_slip_builds_nothing(monkeypatch: pytest.MonkeyPatch, word: str, code: int) -> None:
    """A build takes minutes."""
    monkeypatch.setattr(binaries, "_make", lambda *_: pytest.fail("built"))
    with pytest.raises(SystemExit) as ended:
        binaries.main([word])
    assert ended.value.code == code


def test_only_a_variable_of_its_own_names_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests delete what they find: neither KUBECONFIG nor a mistyped path leads them to another cluster than meant."""
    existing = tmp_path / "throw-away.yaml"
    existing.touch()
    monkeypatch.setenv("KUBECONFIG", str(existing))
    monkeypatch.delenv("GPU_PROVISION_TEST_KUBECONFIG", raising=False)
    assert given() is None
    monkeypatch.setenv("GPU_PROVISION_TEST_KUBECONFIG", str(existing))
    assert given() == existing
    monkeypatch.setenv("GPU_PROVISION_TEST_KUBECONFIG", f"{existing}.mistyped")
    with pytest.raises(FileNotFoundError, match="is no file"):
        given()


def test_a_program_ends_with_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL leaves the parent no time to clean up."""
    command, sleep = [sys.executable, "-c", PARENT, str(tmp_path / "log")], shutil.which("sleep")
    assert sleep
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = Path(f"/proc/{int(parent.stdout.readline())}")
        started = await_ready(lambda: (child / "exe").resolve() == Path(sleep).resolve())
        parent.kill()
    assert started
    assert await_ready(lambda: not _lives(child))


def _lives(process_folder: Path) -> bool:
    try:
        return "State:\tZ" not in (process_folder / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_whose_port_was_taken_gets_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice of a port and its use another program may take it, once in a hundred runs."""
    with socket.socket() as other, contextlib.ExitStack() as running:
        other.bind(("127.0.0.1", 0))
        offered = itertools.chain([taken := other.getsockname()[1]], iter(free_port, taken))
        monkeypatch.setattr(processes, "free_port", lambda: next(offered))
        program = Program(tmp_path / "log", lambda port: [sys.executable, "-c", SERVER, str(port)], _answers)
        assert listening(program, running)[0] != taken


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def test_a_failed_run_keeps_logs_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the process that people see says where."""
    monkeypatch.setattr(kept_logs, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr(kept_logs, "_directories", [])
    (tmp_path / "some-test0" / "plane").mkdir(parents=True)
    (tmp_path / "some-test0" / "plane" / "etcd.log").touch()
    kept_logs.remember(tmp_path / "some-test0" / "plane")
    worker: Any = SimpleNamespace(stash=pytest.Stash(), workeroutput={})
    failed: Any = SimpleNamespace(testsfailed=1, config=worker)
    kept_logs.pytest_sessionfinish(failed)
    controller, said = SimpleNamespace(stash=pytest.Stash()), list[str]()
    kept_logs.pytest_testnodedown(SimpleNamespace(config=controller, workeroutput=worker.workeroutput))
    terminal: Any = SimpleNamespace(write_line=said.append, config=controller)
    kept_logs.pytest_terminal_summary(terminal)
    [kept] = (tmp_path / "kept").rglob("some-test0-plane/etcd.log")
    assert [str(kept.parents[1]) in line for line in said] == [True]
