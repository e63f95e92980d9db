"""A pytest plugin for `gpu-provision verify` alone: tells its parent how each test ended, a JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from typing import Any

import pytest

from gpu_provision.model.findings import ProvisionError, Unreachable
from gpu_provision.verify.result import Outcome


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says where to write."""
    parser.addoption("--gpu-results", type=int, metavar="DESCRIPTOR", help="open file descriptor for the results")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell the outcome when it is known: after the call, or when the setup gave the test up."""
    report = yield
    decided = report.when == "call" or (report.when == "setup" and not report.passed)
    if decided or (report.when == "teardown" and report.failed):
        error = call.excinfo.value if call.excinfo else None
        _tell(item.config.getoption("--gpu-results"), _result(item, report, error))
    return report


def _tell(descriptor: int, result: dict[str, Any]) -> None:
    os.write(descriptor, f"{json.dumps(result)}\n".encode())


def _result(item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> dict[str, Any]:
    return {
        "sentence": sentence(item),
        "node": str(dict(report.user_properties).get("node", "")),
        "outcome": _outcome(report, error).value,
        "reason": reason(error) if error else "",
        "seconds": round(report.duration, 3),
        "test": item.nodeid,
    }


def sentence(item: pytest.Item) -> str:
    """Return a test's name as the sentence that it is."""
    name = getattr(item, "originalname", None) or item.name
    return name.removeprefix("test_").replace("_", " ")


def _outcome(report: pytest.TestReport, error: BaseException | None) -> Outcome:
    if isinstance(error, Unreachable):
        return Outcome.UNREACHABLE
    return Outcome(report.outcome)


def reason(error: BaseException) -> str:
    """Return why a test did not pass, in the words of whoever wrote it, on one line."""
    if isinstance(error, ProvisionError):
        return "; ".join(_short(finding.what, finding.evidence) for finding in error.findings)
    said = str(getattr(error, "msg", None) or error)
    words = said.partition("\nassert ")[0].strip()
    known = isinstance(error, AssertionError | pytest.fail.Exception | pytest.skip.Exception)
    return " ".join((words if known else f"{type(error).__name__}: {words}").split())


def _short(what: str, evidence: str) -> str:
    return f"{what} ({evidence})" if evidence else what
