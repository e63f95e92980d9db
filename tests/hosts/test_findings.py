"""Findings of operations in pyinfra's log, with control characters escaped."""

from __future__ import annotations

import logging

import pytest

from gpu_provision.hosts import operations
from tests.hostile import TEXTS


def logged(message: object, *arguments: object) -> str:
    """Return what pyinfra's handlers get of a message."""
    record = logging.LogRecord("pyinfra", logging.INFO, "", 0, message, arguments, None)
    assert operations.logger.filter(record)
    return record.getMessage()


@pytest.mark.parametrize(("text", "shown"), TEXTS.values(), ids=TEXTS)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    """But for the codes of colors, which pyinfra puts around texts before it logs them."""
    if text == TEXTS["the tool's own red"][0]:
        shown = text
    assert logged(text) == shown


def test_prefix_and_arguments_are_as_pyinfra_has_them() -> None:
    prefix = "\x1b[0m[\x1b[1mt4-1\x1b[0m] "
    assert logged(f"{prefix}%s: 100%%", "\x1b[8mhidden\x1b[0m") == f"{prefix}\\x1b[8mhidden\x1b[0m: 100%"
    assert logged("100%") == "100%"
    assert logged(ValueError("\x1b[2J")) == r"\x1b[2J"
