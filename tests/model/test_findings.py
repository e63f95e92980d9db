"""Problems as values: told in full, and each class with its exit code."""

from __future__ import annotations

import sys

import pytest

from gpu_provision.model.findings import Finding, RunFailedError, escape_control_characters, one_line
from gpu_provision.model.progress import LockHolder
from tests.hostile import TEXTS, find_control_characters


def test_a_finding_tells_where_what_evidence_and_fix() -> None:
    full = Finding(code="GP1", what="w", where="f:1", evidence="e", fix="x")
    assert str(full) == "GP1 f:1: w\n  evidence: e\n  fix: x"
    assert str(Finding(code="GP1", what="w")) == "GP1: w"


@pytest.mark.parametrize(("text", "shown"), TEXTS.values(), ids=TEXTS)
def test_a_control_character_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert escape_control_characters(text) == one_line(text) == escape_control_characters(shown) == shown


def test_no_character_of_unicode_is_left_that_steers() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert find_control_characters(escape_control_characters(every)) == set()


@pytest.mark.parametrize("text", ["", "a\tb\nc\n", "Größe 5 µm, 日本語, 😀, \u200d", r"C:\x1b", "\ufeffa"])
def test_ordinary_text_stays(text: str) -> None:
    """A line ending of Windows is a newline."""
    assert escape_control_characters(text) == text == escape_control_characters(text.replace("\n", "\r\n"))
    assert (escape_control_characters("a\r\nb\rc"), one_line("a\r\nb")) == ("a\nb\\rc", r"a\nb")


@pytest.mark.parametrize(("text", "shown"), TEXTS.values(), ids=TEXTS)
def test_a_finding_and_an_exception_are_safe_to_print(text: str, shown: str) -> None:
    """Printed by pyinfra, in a traceback, or by a program that uses the library."""
    finding = Finding(code="GP501", where=text, what=text, evidence=text, consequence=text, fix=text)
    for told in (str(finding), str(RunFailedError(finding))):
        assert find_control_characters(told) == set()
        assert told.count(shown) == 5


def test_a_value_cannot_forge_a_part_of_a_finding() -> None:
    """What belongs on one line stays there, and further lines of evidence are moved to the right."""
    output = str(Finding(code="GP501", where="a\nb", what="c\nerror: d", evidence="e\n  fix: f\ng", fix="h"))
    assert output.splitlines() == [r"GP501 a\nb: c\nerror: d", "  evidence: e", "      fix: f", "    g", "  fix: h"]
    assert str(LockHolder(holder="ada\nb\x1b[2J", since="now")) == r"ada\nb\x1b[2J, since now"
