"""Reasons in words."""

from __future__ import annotations

import pytest

from gpu_provision.model.findings import Finding, Unreachable
from gpu_provision.verify.reporter import reason


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AssertionError("it is called otherwise\nassert 'a' == 'b'"), "it is called otherwise"),
        (AssertionError("assert 1 == 2"), "assert 1 == 2"),
        (pytest.skip.Exception("gfd is off"), "gfd is off"),
        (pytest.fail.Exception("no node"), "no node"),
        (KeyError("status"), "KeyError: 'status'"),
        (Unreachable(Finding(code="GP301", what="silent", evidence="Errno 111")), "silent (Errno 111)"),
    ],
)
def test_reason_is_that_of_whoever_wrote_the_test(error: BaseException, words: str) -> None:
    """Pytest's own view of an assertion is left out, and what nobody foresaw is named by its kind."""
    assert reason(error) == words
