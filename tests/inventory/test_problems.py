"""An absurd file: the first findings and a count, for the work of the first findings."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.inventory import check, load, validate
from gpu_provision.inventory.document import MAX_FINDINGS
from gpu_provision.inventory.json_schema import find_schema_errors
from gpu_provision.model.findings import Severity

HEAD = "name: absurd\ncluster: {}\n"
POOLS = "pools: {t4: {gpu: {model: T4, count: 1}}}\n"
ABSURD: dict[str, tuple[str, str]] = {
    "unknown keys": (HEAD, "key{0}: 1\n"),
    "malformed keys": (f"{HEAD}driver:\n  env:\n", "    {0}-: a\n"),
    "malformed values": (f"{HEAD}image_pull_secrets:\n", "- A{0}\n"),
    "repeated keys": (HEAD, "name: absurd\n"),
    "unknown pools": (f"{HEAD}{POOLS}nodes:\n", "- {{name: n{0}, pool: p{0}}}\n"),
    "unknown models": (f"{HEAD}pools:\n", "  p{0}: {{gpu: {{model: X{0}, count: 1}}, node_selector: {{a: b}}}}\n"),
}
"""Beginning of a file, and a line of which each copy is wrong."""

ADDED = {"unknown pools": 2}
"""Findings that such a file has besides: the one pool has no nodes, so nothing has a GPU."""


def write_absurd(directory: Path, absurd: str, count: int, tail: str = "") -> Path:
    head, line = ABSURD[absurd]
    file = directory / "absurd.yaml"
    file.write_text(head + "".join(line.format(each) for each in range(count)) + tail, encoding="utf-8")
    return file


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words for which a similar one was looked for."""
    result: list[str] = []
    real = difflib.get_close_matches

    def watched(word: str, *rest: Any, **more: Any) -> list[str]:
        result.append(word)
        return real(word, *rest, **more)

    monkeypatch.setattr(difflib, "get_close_matches", watched)
    return result


@pytest.mark.parametrize("absurd", ABSURD)
@pytest.mark.parametrize("count", [MAX_FINDINGS + 5, 1_000])
def test_the_work_is_that_of_the_findings_shown(tmp_path: Path, searches: list[str], absurd: str, count: int) -> None:
    """Twenty findings with their lines, and one with the number of all; similar names are looked for no more often."""
    file = write_absurd(tmp_path, absurd, count)
    *shown, last = check(file).all
    lines = [int(finding.where.removeprefix(f"{file}:").split(" ")[0]) for finding in (*shown, last)]
    assert len(shown) == MAX_FINDINGS
    assert lines == sorted(lines)
    assert (last.code, last.what.split()[3:5]) == ("GP114", [f"{count + ADDED.get(absurd, 0):,}", "findings;"])
    assert len(searches) <= MAX_FINDINGS


@pytest.mark.parametrize("absurd", ["unknown keys", "malformed keys", "malformed values", "repeated keys"])
def test_a_file_of_another_shape_is_looked_at_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absurd: str
) -> None:
    """Nothing more would be shown."""
    monkeypatch.setattr(sys.modules[load.__module__], "resolve", None)
    assert check(write_absurd(tmp_path, absurd, MAX_FINDINGS + 1)).all[-1].code == "GP114"


def test_errors_come_before_warnings(tmp_path: Path) -> None:
    """What makes a file useless is shown, however many warnings stand above it."""
    inventory, findings = validate(write_absurd(tmp_path, "unknown models", 30, "nodes: [{name: a, pool: b}]\n"))
    assert inventory is None
    assert [finding.code for finding in findings.errors] == ["GP142"]
    assert (len(findings.warnings), findings.all[-1].severity) == (MAX_FINDINGS, Severity.WARNING)
    inventory, findings = validate(write_absurd(tmp_path, "unknown models", 30))
    assert inventory is not None, "warnings alone leave it usable"
    assert (findings.errors, len(findings.warnings)) == ((), MAX_FINDINGS + 1)


def test_a_list_of_mixed_types_is_not_compared_pair_by_pair() -> None:
    """Its types are wrong; whether it repeats one is asked of its texts, each with those of the same hash."""
    compared = 0

    class Text(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other) is True

    secrets: list[object] = [1, *(Text(f"a{each}") for each in range(300)), Text("a7")]
    result = find_schema_errors({"name": "absurd", "cluster": {}, "image_pull_secrets": secrets})
    assert {each.keyword for each in result} == {"type", "uniqueItems"}
    assert compared < 1_000
