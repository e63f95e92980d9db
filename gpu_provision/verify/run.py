"""Runs acceptance tests: pytest in a process of its own, so that no other configuration or plugins come into it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from gpu_provision import files
from gpu_provision.model import codes
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import Finding, RunFailedError, UsageError, escape_control_characters
from gpu_provision.model.progress import Event, State


class CheckOutcome(StrEnum):
    """How one check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # it says nothing, for a reason
    UNREACHABLE = "unreachable"  # whom it would have asked does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of one node."""

    sentence: str  # what holds if it passed: ``nouveau is not loaded``
    node: str  # the node's name; empty for the cluster as a whole
    outcome: CheckOutcome
    reason: str = ""  # why it did not pass
    seconds: float = 0.0
    test: str = ""  # pytest's name of the test


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All checks, in the order in which they ran."""

    checks: tuple[Check, ...]

    def checks_with(self, *outcomes: CheckOutcome) -> tuple[Check, ...]:
        """Return the checks that ended so."""
        return tuple(check for check in self.checks if check.outcome in outcomes)

    @property
    def exit_code(self) -> ExitCode:
        """0 if nothing failed, 1 if something did, 69 if a host or the cluster did not answer and nothing failed."""
        if self.checks_with(CheckOutcome.FAILED):
            return ExitCode.FAILED
        return ExitCode.UNREACHABLE if self.checks_with(CheckOutcome.UNREACHABLE) else ExitCode.OK


COMPONENT = "verification"  # component of the events
_CHECKS = Path(__file__).parent / "checks"
_BAD = frozenset({CheckOutcome.FAILED, CheckOutcome.UNREACHABLE})
_NEEDED = {"pytest": "pytest", "testinfra": "pytest-testinfra"}
_RAN, _NONE_FOUND = frozenset({0, 1}), 5  # pytest's exit codes for tests that ran, and for none


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Which tests to run, against what."""

    inventory: str  # path of the inventory
    kubeconfig: str | None = None
    context: str | None = None
    nodes: tuple[str, ...] = ()  # names of nodes; none for all
    hosts: bool = True  # whether to run our checks of hosts
    cluster: bool = True  # whether to run our checks of the cluster
    tests: tuple[str, ...] = ()  # files or folders with tests of the user's own
    junit: str = ""  # where to write JUnit XML; empty for nowhere


def verify(wanted: VerifyOptions, listen: Callable[[Event], None] = lambda _: None) -> Verification:
    """Run acceptance tests, return how each ended. Raises UsageError without the extra's packages, RunFailedError."""
    if missing := [package for module, package in _NEEDED.items() if find_spec(module) is None]:
        what = f"the acceptance tests need {' and '.join(missing)}, an extra of this package"
        raise UsageError(Finding(code=codes.NOT_INSTALLED, what=what, fix="pip install 'gpu-provision[verify]'"))
    checks: list[Check] = []
    with tempfile.TemporaryFile() as output, _pytest(wanted, output) as (process, results):
        for line in results:
            told = json.loads(line)
            check = Check(**{**told, "outcome": CheckOutcome(told["outcome"])})
            checks.append(check)
            state = State.FAILED if check.outcome in _BAD else State.PROGRESSING
            message = f"{check.sentence}: {check.reason}"
            listen(Event(component=COMPONENT, node=check.node, state=state, message=message))
        status = process.wait()
        if wanted.junit and files.is_file(path := Path(wanted.junit)):  # pytest escapes only what XML forbids
            files.write_atomic(path, escape_control_characters(path.read_text(encoding="utf-8")))
        if status not in _RAN and not (status == _NONE_FOUND and wanted.nodes):
            output.seek(0)
            raise RunFailedError(_not_run_finding(status, output.read().decode(errors="replace")))
    return Verification(checks=tuple(checks))


def arguments(wanted: VerifyOptions) -> list[str]:
    """Return pytest's command line, but for where the results go."""
    ours = [_CHECKS / name for name, on in (("hosts.py", wanted.hosts), ("cluster.py", wanted.cluster)) if on]
    options = {
        "--gpu-inventory": wanted.inventory,
        "--gpu-kubeconfig": wanted.kubeconfig,
        "--gpu-context": wanted.context,
        "--gpu-limit": ",".join(wanted.nodes),
        "--junitxml": str(Path(wanted.junit).absolute()) if wanted.junit else "",
    }
    return [
        *("-c", os.devnull, "--rootdir", str(_CHECKS), "--import-mode=importlib"),
        *("-p", "gpu_provision.verify.plugin", "-p", "no:cacheprovider"),
        *("-o", "junit_suite_name=gpu-provision verify", "--tb=short", "-q"),
        *(f"{option}={value}" for option, value in options.items() if value),
        *map(str, ours),
        *wanted.tests,
    ]


@contextlib.contextmanager
def _pytest(wanted: VerifyOptions, output: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    """Start pytest with this very package, and without what would change it; it ends with this block."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [kept.get("PYTHONPATH")])])
    own = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as results:
        command = [sys.executable, "-m", "pytest", f"--gpu-results={writing}", *arguments(wanted)]
        try:
            process = subprocess.Popen(  # noqa: S603 - our own tests, and those that the user names
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[writing], env=kept | own
            )
        finally:
            os.close(writing)
        with process:
            try:
                yield process, results
            finally:
                process.kill()


def _not_run_finding(status: int, output: str) -> Finding:
    lines: Sequence[str] = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "E  "))]
    return Finding(
        code=codes.NOT_RUN,
        what=f"pytest ended with status {status} before it could run the tests",
        evidence=(errors or lines or [""])[0].strip(),
        fix="see what it says of the tests that you named; our own need nothing but the inventory",
    )
