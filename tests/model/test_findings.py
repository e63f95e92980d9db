"""Problems as values: told in full, and each class with its exit code."""

from __future__ import annotations

import pytest

from gpu_provision.model import findings
from gpu_provision.model.findings import ExitCode, Finding, Findings, ProvisionError, Severity


def test_a_finding_tells_where_what_evidence_and_fix() -> None:
    full = Finding(code="GP1", what="w", where="f:1", evidence="e", fix="x")
    assert str(full) == "GP1 f:1: w\n  seen: e\n  fix: x"
    assert str(Finding(code="GP1", what="w")) == "GP1: w"


def test_an_error_tells_all_its_findings() -> None:
    assert str(ProvisionError(Finding(code="A", what="a"), Finding(code="B", what="b"))) == "A: a\nB: b"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("InvalidInventory", 65),
        ("UsageError", 64),
        ("Unreachable", 69),
        ("Refused", 1),
        ("Rejected", 1),
        ("Locked", 75),
        ("RunFailed", 1),
    ],
)
def test_every_class_has_its_exit_code(name: str, code: int) -> None:
    assert getattr(findings, name).exit_code == ExitCode(code)


def test_findings_are_split_by_severity() -> None:
    error, warning = Finding(code="A", what="a"), Finding(code="B", what="b", severity=Severity.WARNING)
    both = Findings((warning, error))
    assert (both.errors, both.warnings) == ((error,), (warning,))
