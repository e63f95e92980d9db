"""docs/contract.md: which behavior was observed on which server.

    python -m pytest -m "real or not real" tests/contract --contract-table docs/contract.md

writes the results of the run and changes no other cell; ``python -m tests.contract.page`` updates the list of tests.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests import data_file

SUITE = Path(__file__).parent
PAGE = SUITE.parents[1] / "docs" / "contract.md"
_HEAD = """# Behavior of API servers

Every line is a test of `tests/contract`, or a case of `tests/contract/api/cases`. The tests send the same requests to
the sandbox's API server and to a real one, and expect the same responses. A number counts the cases of a test. "Not in"
counts the cases that a server of that version lacks or handles differently; the tests state what it does instead.
"Not asked" means that the test has not run on that server. [sandbox.md](sandbox.md#not-included) lists what the sandbox
leaves out.

    make test                   tests the sandbox
    make test-contract          tests the sandbox and a real control plane
    python -m pytest -m "real or not real" tests/contract --contract-table docs/contract.md      writes this page

"""
SANDBOX = "sandbox"
NOT_ASKED = "not asked"
_ROW = re.compile(r"^\| (?P<sentence>[^|]+?) \|(?P<cells>.*)\|$")

Row = tuple[str, str]
"""The file of a test below the suite, without its ending, and its sentence."""


@dataclass
class Outcomes:
    counts: dict[Row, Counter[str]] = field(default_factory=dict)

    def add(self, row: Row, outcome: str) -> None:
        self.counts.setdefault(row, Counter())[outcome] += 1

    def cell(self, row: Row) -> str:
        counts = self.counts.get(row)
        if not counts:
            return NOT_ASKED
        if counts["failed"]:
            return f"**fails** ({counts['failed']} of {counts.total()})"
        if not counts["passed"]:
            return "not in this version"
        some = f"{counts['passed']}" if counts.total() > 1 else ""
        less = f"not in {counts['skipped']}" if counts["skipped"] else ""
        return ", ".join(filter(None, (f"yes ({some})" if some else "yes", less)))


def rows() -> list[Row]:
    """Return a row for each case and for each test of the suite with a server, in the order of the files."""
    tests = [
        (_title(file), sentence(node.name))
        for file in SUITE.glob("*/test_*.py")
        if file.stem != "test_cases"
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and node.args.args
    ]
    cases = [
        (f"api/{file.stem}", case["name"])
        for file in SUITE.glob("api/cases/*.yaml")
        for case in data_file.document(file.read_text("utf-8"))["cases"]
    ]
    return sorted([*cases, *tests], key=lambda row: row[0])


def sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def row_of(nodeid: str) -> tuple[Row, str] | None:
    """Return the row of a test and the kind of its server; None for a test without a server."""
    path, _, name = nodeid.partition("::")
    function, _, parameters = name.partition("[")
    kind = re.match(r"sandbox|real", parameters)
    if kind and path.endswith("test_cases.py"):
        title, _, name = parameters.removesuffix("]").partition("-")[2].partition("/")
        return (f"api/{title}", name.partition(" #")[0]), kind.group()
    return ((_title(Path(path)), sentence(function)), kind.group()) if kind else None


def _title(file: Path) -> str:
    return f"{file.parent.name}/{file.stem.removeprefix('test_')}"


def read_cells(text: str) -> dict[str, dict[Row, str]]:
    columns: list[str] = []
    cells: dict[str, dict[Row, str]] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif found := _ROW.match(line):
            parts = [part.strip() for part in found["cells"].split("|")]
            if found["sentence"] == "behavior":
                columns = parts
            elif not found["sentence"].startswith("---"):
                for column, part in zip(columns, parts, strict=True):
                    cells.setdefault(column, {})[title, found["sentence"]] = part
    return cells


def page(seen: Mapping[str, Outcomes], before: str) -> str:
    cells = read_cells(before)
    for column, outcome in seen.items():
        cells.setdefault(column, {}).update({row: outcome.cell(row) for row in outcome.counts})
    return "".join((_HEAD, *_sections(cells, sorted(cells, key=_order))))


def _order(column: str) -> tuple[bool, str]:
    return column != SANDBOX, column


def _sections(cells: Mapping[str, Mapping[Row, str]], columns: Iterable[str]) -> Iterator[str]:
    names, last = [*columns], ""
    for row in rows():
        if row[0] != last:
            gap = "\n" if last else ""
            yield f"{gap}## {row[0]}\n\n| behavior | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
            last = row[0]
        yield f"| {row[1]} | {' | '.join(cells[name].get(row, NOT_ASKED) for name in names)} |\n"


def main() -> None:
    PAGE.write_text(page({}, PAGE.read_text("utf-8") if PAGE.exists() else ""), "utf-8")


if __name__ == "__main__":
    main()
