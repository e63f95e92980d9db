"""The command line, run in this process against hand-made plans and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpu_provision
from gpu_provision.api.jobs import ApplyJob, DestroyJob
from gpu_provision.api.views import StackStatus
from gpu_provision.cli import root
from gpu_provision.history import rollback as records
from gpu_provision.hosts import runner as hosts_run
from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import LockHolder
from gpu_provision.reconcile import preflight
from gpu_provision.reconcile.session import Session
from tests.cli.harness import CommandResult, Fakes, Run
from tests.conftest import end_sandboxes


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Run gpu-provision in this process; state goes to a folder of the test, and a sandbox there ends with it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GPU_PROVISION_SANDBOX_DIR", str(tmp_path / "sandbox"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.delenv("GPU_PROVISION_INVENTORY", raising=False)

    def runner(*words: object) -> CommandResult:
        capsys.readouterr()
        code = root.run([str(word) for word in words])
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    yield runner
    end_sandboxes(tmp_path / "sandbox")


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Replace all access to hosts and clusters."""
    fakes = Fakes()

    def answer(value: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    def apply(job: ApplyJob, on_hosts: object, part: object, planned: Callable[[Plan], None], _listen: object) -> Any:
        if isinstance(fakes.plan, Plan):
            planned(fakes.plan)
        fakes.applied += 1
        own = {"take_over": job.take_over, "rollback_to": job.rollback_to}
        fakes.arguments = {"on_hosts": on_hosts, "part": part, **own}
        return answer(fakes.result)

    def unlock(_: object, *, agreed: Callable[[LockHolder], bool], **__: object) -> tuple[LockHolder | None, bool]:
        return fakes.lock, fakes.lock is not None and agreed(fakes.lock)

    def teardown(*_: object, dry_run: bool, **__: object) -> Any:
        fakes.torn_down.append(dry_run)
        return fakes.hosts or HostsResult()

    def plan(_job: object, _on_hosts: object, part: object) -> Any:
        fakes.arguments = {"part": part}
        return answer(fakes.plan)

    monkeypatch.setattr(hosts_run, "teardown", teardown)
    monkeypatch.setattr(ApplyJob, "_prepare", lambda *_, **__: fakes.hosts or HostsResult())
    monkeypatch.setattr(ApplyJob, "_plan_cluster", plan)
    monkeypatch.setattr(ApplyJob, "_apply_cluster", apply)
    monkeypatch.setattr(DestroyJob, "_destroy", lambda *_, **__: answer(fakes.removal))
    monkeypatch.setattr(ApplyJob, "_read_drift", lambda *_: fakes.drift)
    monkeypatch.setattr(Session, "cluster", None)
    monkeypatch.setattr(records, "read_history", lambda *_: fakes.history)
    monkeypatch.setattr(preflight, "preflight", lambda *_, **__: answer(fakes.preflight_report))
    monkeypatch.setattr(gpu_provision, "status", lambda *_, **__: StackStatus.copy_of(fakes.status))
    monkeypatch.setattr(gpu_provision, "unlock", unlock)
    return fakes
