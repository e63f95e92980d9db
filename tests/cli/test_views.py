"""The commands preflight and verify."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision import ExitCode, Finding, Severity
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model.inventory import Inventory
from gpu_provision.reconcile import preflight as engine
from gpu_provision.reconcile.preflight import PreflightReport
from gpu_provision.verify import run as verifying
from gpu_provision.verify.run import Check, CheckOutcome, Verification, VerifyOptions
from tests.cli.harness import SANDBOX, Fakes, Run

HOSTS = HostsResult(hosts=(HostOutcome(name="t4-1", gpus=1), HostOutcome(name="t4-2", gpus=1)))


def finding(where: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(
        code="GP620", where=where, what="two drivers", evidence="x", consequence="y", fix="z", severity=severity
    )


ALIKE = """\
error: GP620 t4-1, t4-2: two drivers
  evidence: x
  impact: y
  fix: z

2 hosts read, nothing changed: 2 errors, 0 warnings
"""
NOTHING = "2 hosts read, nothing changed: no problem found\n"


@pytest.mark.parametrize(
    ("severity", "nodes", "code", "told"),
    [
        (Severity.ERROR, (), 0, NOTHING),
        (Severity.ERROR, ("t4-1", "t4-2"), 1, ALIKE),
        (Severity.WARNING, ("t4-1",), 0, "1 warning"),
    ],
)
def test_errors_fail_and_hosts_alike_share_them(  # noqa: PLR0913, PLR0917 - a table
    run: Run, fakes: Fakes, severity: Severity, nodes: tuple[str, ...], code: int, told: str
) -> None:
    fakes.preflight_report = PreflightReport(hosts=HOSTS, findings=tuple(finding(node, severity) for node in nodes))
    done = run("preflight", "-i", SANDBOX)
    assert (done.code, told in done.out) == (code, True)


def test_options_reach_the_judgement(run: Run, fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit as names, codes in any case and several at once, and no registry offline."""
    asked: list[tuple[Inventory, tuple[str, ...]]] = []

    def preflight(inventory: Inventory, *, limit: tuple[str, ...], **_: object) -> PreflightReport:
        asked.append((inventory, limit))
        return PreflightReport(hosts=HOSTS, findings=())

    monkeypatch.setattr(engine, "preflight", preflight)
    run("preflight", "-i", SANDBOX, "--limit", "t4-*", "--ignore", "gp620,GP632", "--ignore", "GP610", "--offline")
    ((inventory, limit),) = asked
    assert limit == ("t4-1", "t4-2")
    assert inventory.preflight.ignore == ("GP620", "GP632", "GP610")
    assert not inventory.preflight.registry
    assert fakes.applied == 0


@pytest.mark.parametrize("command", ["preflight", "plan", "apply"])
def test_unknown_code_is_a_mistake(run: Run, fakes: Fakes, command: str, tmp_path: Path) -> None:
    """Such a code overrides nothing; the error names the place of a code in the inventory."""
    done = run(command, "-i", SANDBOX, "--ignore", "GP699")
    assert (done.code, "preflight has no finding GP699" in done.err) == (ExitCode.USAGE, True)
    path = tmp_path / "i.yaml"
    path.write_text(SANDBOX.read_text().replace("pools:", "preflight: {ignore: [GP699]}\npools:"))
    done = run(command, "-i", path)
    assert (done.code, "i.yaml preflight.ignore" in done.err) == (ExitCode.USAGE, True)
    assert fakes.applied == 0


def test_plan_tells_what_stops_a_host(run: Run, fakes: Fakes) -> None:
    """On stderr with evidence and fix, and as an error of the document."""
    failed = HostOutcome(name="t4-1", failed=True, reason="two drivers; z", errors=(finding("t4-1"),))
    fakes.hosts = HostsResult(hosts=(failed,), findings=(finding("t4-2", Severity.WARNING),))
    done = run("plan", "-i", SANDBOX)
    assert done.code == ExitCode.FAILED
    assert "error: GP620 t4-1: two drivers" in done.err
    assert "warning: GP620 t4-2: two drivers" in done.err
    assert [each["where"] for each in run("plan", "-i", SANDBOX, "--json").document["errors"]] == ["t4-1"]


def answer(monkeypatch: pytest.MonkeyPatch, *outcomes: CheckOutcome) -> list[VerifyOptions]:
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
    """A failure outranks an unreachable host."""
    answer(monkeypatch, *outcomes)
    assert run("verify", "-i", SANDBOX).code == code


def test_options_reach_the_tests(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The limit as names; own tests; JUnit XML."""
    asked = answer(monkeypatch)
    own, junit = tmp_path / "test_own.py", tmp_path / "x.xml"
    own.touch()
    words = ("--limit", "t4-*", "--hosts-only", "--junit", junit, "--context", "x", "--json")
    done = run("verify", own, "-i", SANDBOX, *words)
    assert run("verify", tmp_path / "no_test.py", "-i", SANDBOX).code == ExitCode.USAGE
    nodes, tests = ("t4-1", "t4-2"), (str(own),)
    wanted = VerifyOptions(
        inventory=str(SANDBOX), context="x", nodes=nodes, tests=tests, junit=str(junit), cluster=False
    )
    assert asked == [wanted]
    assert (done.document["inventory"], done.document["passed"], done.document["checks"]) == ("sandbox", True, [])
