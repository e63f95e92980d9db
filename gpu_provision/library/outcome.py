"""Failure as an exception that has the result."""

from __future__ import annotations

from typing import TypeVar

from gpu_provision.model.findings import RunFailed, Severity
from gpu_provision.model.progress import RunResult
from gpu_provision.model.removal import RemovalResult

_Result = TypeVar("_Result", RunResult, RemovalResult)


def unless_failed(result: _Result) -> _Result:
    """Return a result. Raises RunFailed, which has it, if it tells of errors."""
    if any(item.severity is Severity.ERROR for item in result.findings):
        failure = RunFailed(*result.findings)
        failure.result = result
        raise failure
    return result
