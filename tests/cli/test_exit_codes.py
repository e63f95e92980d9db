"""Every failure has its exit code, in words and as JSON, and never a traceback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model.findings import (
    ExitCode,
    Finding,
    ForbiddenError,
    LockedError,
    ProvisionError,
    RunFailedError,
    UnreachableError,
)
from gpu_provision.model.plan import Difference, Origin
from gpu_provision.model.progress import LockHolder
from tests.cli.harness import CHANGE, PROD, SANDBOX, Fakes, Run, plan_of
from tests.data_file import document

FINDING = Finding(code="GP301", where="https://x:6443", what="no answer", fix="start it")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnreachableError(FINDING), ExitCode.UNREACHABLE),
        (LockedError(FINDING), ExitCode.LOCKED),
        (ForbiddenError(FINDING), ExitCode.FAILED),
        (RunFailedError(FINDING), ExitCode.FAILED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (ValueError("an internal mistake"), ExitCode.FAILED),
    ],
)
def test_a_failure_has_its_exit_code_in_both_forms(
    run: Run, fakes: Fakes, error: ProvisionError, code: ExitCode
) -> None:
    """Text goes to stderr, the document to stdout; the code is the same."""
    fakes.plan = error
    text, document = run("plan", "-i", SANDBOX), run("plan", "-i", SANDBOX, "--json")
    assert (text.code, document.code) == (code, code)
    assert text.out == ""
    assert text.err.lstrip().startswith("error: GP")
    assert "Traceback" not in text.err
    assert document.document["errors"]


def test_an_internal_error_is_one_line_and_a_log_file(run: Run, fakes: Fakes, tmp_path: Path) -> None:
    """The traceback is in the log, which its owner alone can read; -v shows it too."""
    fakes.plan = ValueError("an internal mistake")
    log = tmp_path / "state" / "gpu-provision" / "gpu-provision.log"
    assert str(log) in run("plan", "-i", SANDBOX).err
    assert "ValueError: an internal mistake" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
    assert "Traceback" in run("plan", "-i", SANDBOX, "-v").err


WRONG = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))["wrong"]


@pytest.mark.parametrize(("words", "hint"), WRONG)
def test_wrong_usage_is_64_and_names_the_nearest_right_word(
    run: Run, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, words: list[str], hint: str
) -> None:
    """2 would mean differences."""
    fakes.plan = plan_of()
    monkeypatch.setenv("GPU_PROVISION_INVENTORY", str(SANDBOX))
    ran = run(*words)
    assert (ran.code, hint in ran.err) == (ExitCode.USAGE, True)
    if "error: " in ran.err:
        assert run(*words, "--json").document["errors"][0]["code"] in ran.err


def test_without_an_inventory_its_option_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Outside of a repository there is no default."""
    monkeypatch.chdir(tmp_path)
    ran = run("validate")
    assert (ran.code, "-i FILE" in ran.err) == (ExitCode.USAGE, True)


def test_an_invalid_inventory_is_65_everywhere(run: Run, tmp_path: Path) -> None:
    """Every command that reads an inventory reports all that is wrong with it."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: x\nrelease: 1\nnodez: []\n")
    for command in ("validate", "render", "plan", "apply", "status"):
        ran = run(command, "-i", bad)
        assert ran.code == ExitCode.INVALID_INVENTORY, command
        assert "GP1" in ran.out + ran.err


def test_differences_are_2_only_when_asked_for(run: Run, fakes: Fakes) -> None:
    """And only for a plan that can be carried out."""
    assert run("plan", "-i", SANDBOX).code == ExitCode.OK
    assert run("plan", "-i", SANDBOX, "--detailed-exitcode").code == ExitCode.DIFFERENCES
    fakes.plan = plan_of()
    assert run("plan", "-i", SANDBOX, "--detailed-exitcode").code == ExitCode.OK


@pytest.mark.parametrize(
    ("origin", "code"), [(Origin.DRIFT, 2), (Origin.UNKNOWN, 2), (Origin.NOT_READY, 2), (Origin.PENDING, 0)]
)
def test_what_is_pending_is_no_drift(run: Run, fakes: Fakes, origin: Origin, code: int) -> None:
    """A merge that is not applied yet is no reason to page; a host that differs is."""
    each = Difference(component="driver", ref=CHANGE.ref, action=CHANGE.action, origin=origin)
    fakes.drift = replace(fakes.drift, differences=(each,))
    assert run("drift", "-i", SANDBOX).code == 0
    assert run("drift", "-i", SANDBOX, "--detailed-exitcode").code == code
    fakes.hosts = HostsResult(hosts=(HostOutcome(name="t4-1", changes=("load ipmi_msghandler",)),))
    ran = run("drift", "-i", SANDBOX, "--detailed-exitcode")
    assert (ran.code, "load ipmi_msghandler" in ran.out) == (2, True)


def test_a_lock_of_a_real_cluster_is_released_after_a_question(run: Run, fakes: Fakes) -> None:
    """A free lock needs no question."""
    assert run("unlock", "-i", PROD).out == "The lock is free.\n"
    fakes.lock = LockHolder(
        holder="root@ci pid 7", since="2026-11-21T08:00:00Z", held_seconds=125.0, silent_seconds=30.0
    )
    refused = run("unlock", "-i", PROD)
    assert (refused.code, "GP005" in refused.err) == (64, True)
    freed = run("unlock", "-i", PROD, "--yes")
    assert freed.code == 0
    assert "held by root@ci pid 7, since 2026-11-21T08:00:00Z (for 2 min 5 s, renewed 30 s ago)" in freed.out


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        (["-i", PROD], True),
        (["-i", PROD, "--json"], True),
        (["-i", SANDBOX, "--context", "prod"], True),
        (["-i", PROD, "--yes"], False),
        (["-i", SANDBOX], False),
    ],
)
def test_a_real_cluster_needs_a_terminal_or_yes(run: Run, fakes: Fakes, words: list[object], *, asks: bool) -> None:
    """--context aims at a real cluster, whatever the file says; a sandbox has nothing to lose."""
    ran = run("apply", *words)
    assert (ran.code, fakes.applied) == ((ExitCode.USAGE, 0) if asks else (ExitCode.OK, 1))
    assert ("--yes" in ran.out + ran.err) == asks
