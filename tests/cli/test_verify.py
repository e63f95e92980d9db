"""The verify command."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision.model.findings import ExitCode, Finding, UsageError
from gpu_provision.verify import run as verifying
from gpu_provision.verify.run import Check, CheckOutcome, Verification, VerifyOptions
from tests.cli.harness import SANDBOX, Run


def answer(monkeypatch: pytest.MonkeyPatch, *outcomes: CheckOutcome) -> list[VerifyOptions]:
    """Let the acceptance tests end so; return what was asked for."""
    asked: list[VerifyOptions] = []

    def verify(wanted: VerifyOptions, _listen: object) -> Verification:
        asked.append(wanted)
        return Verification(checks=tuple(Check(sentence="x", node="t4-1", outcome=each) for each in outcomes))

    monkeypatch.setattr(verifying, "verify", verify)
    return asked


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([CheckOutcome.PASSED, CheckOutcome.SKIPPED], ExitCode.OK),
        ([CheckOutcome.PASSED, CheckOutcome.FAILED, CheckOutcome.UNREACHABLE], ExitCode.FAILED),
        ([CheckOutcome.PASSED, CheckOutcome.UNREACHABLE], ExitCode.UNREACHABLE),
    ],
)
def test_exit_code_is_the_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch, outcomes: list[CheckOutcome], code: ExitCode
) -> None:
    """A failure weighs more than silence."""
    answer(monkeypatch, *outcomes)
    assert run("verify", "-i", SANDBOX).code == code


def test_options_reach_the_tests(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The limit as names; tests of one's own; JUnit XML."""
    asked = answer(monkeypatch)
    own, junit = tmp_path / "test_own.py", tmp_path / "x.xml"
    own.touch()
    done = run(
        "verify", own, "-i", SANDBOX, "--limit", "t4-*", "--hosts-only", "--junit", junit, "--context", "x", "--json"
    )
    assert asked == [
        VerifyOptions(
            inventory=str(SANDBOX),
            context="x",
            nodes=("t4-1", "t4-2"),
            cluster=False,
            tests=(str(own),),
            junit=str(junit),
        )
    ]
    assert (done.document["inventory"], done.document["passed"], done.document["checks"]) == ("sandbox", True, [])


def test_missing_extra_is_one_finding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""

    def verify(*_: object) -> Verification:
        raise UsageError(Finding(code="GP800", what="missing", fix="pip install 'gpu-provision[verify]'"))

    monkeypatch.setattr(verifying, "verify", verify)
    done = run("verify", "-i", SANDBOX)
    assert done.code == ExitCode.USAGE
    assert "pip install 'gpu-provision[verify]'" in done.err


def test_tests_that_do_not_exist_are_a_usage_error(run: Run) -> None:
    """Before anything is started."""
    assert run("verify", "no/such/test.py", "-i", SANDBOX).code == ExitCode.USAGE
