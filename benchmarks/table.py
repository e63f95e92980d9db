"""The result: a table of measures, each with its goal and with what a user would run instead."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

COLUMNS = ("measure", "size", "figure", "goal", "holds", "instead")


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        size: Such as ``200 nodes``.
        holds: Whether the goal is reached; None where there is no goal.
        instead: The same with another tool.
    """

    measure: str
    size: str
    figure: str
    goal: str = ""
    holds: bool | None = None
    instead: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the text of each column."""
        holds = {None: "", True: "yes", False: "no"}[self.holds]
        return self.measure, self.size, self.figure, self.goal, holds, self.instead

    @property
    def name(self) -> str:
        """Measure and size."""
        return f"{self.measure}, {self.size}" if self.size else self.measure

    @property
    def value(self) -> float | None:
        """The first number of the figure; None for text."""
        found = re.match(r"[0-9.]+(e\+[0-9]+)?", self.figure)
        return float(found[0]) if found else None

    def __str__(self) -> str:
        """Return a line for a terminal."""
        goal = f"  (goal: {self.goal}: {'holds' if self.holds else 'missed'})" if self.goal else ""
        return f"{self.measure:24}{self.size:>14}  {self.figure}{goal}{'; ' if self.instead else ''}{self.instead}"


def at_most(  # noqa: PLR0913 - the cells of a row
    measure: str, size: str, value: float, limit: float, unit: str = "", *, instead: str = ""
) -> Row:
    """Return a row whose goal is an upper limit, in the unit of the figure."""
    return Row(measure, size, f"{value:.4g}{unit}", f"<= {limit:.4g}{unit}", value <= limit, instead)


def write(rows: Iterable[Row], file: Path, name: str, circumstances: str) -> None:
    """Replace a generated block of a Markdown file, between comments with its name; raises ValueError without one."""
    first, last = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, begin, rest = file.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        message = f"{file} has no block between {first.strip()} and {last.strip()}"
        raise ValueError(message)
    table = [COLUMNS, ("---",) * len(COLUMNS), *(row.cells() for row in rows)]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    file.write_text(f"{before}{first}{circumstances}\n\n{lines}\n{last}{after}", encoding="utf-8")


def record(rows: Iterable[Row], file: Path) -> None:
    """Add the figures of a run to those that a file has by name; it is created if it is missing."""
    runs: dict[str, list[float]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for row in rows:
        if row.value is not None:
            runs.setdefault(row.name, []).append(row.value)
    file.write_text(f"{json.dumps(runs, indent=1)}\n", encoding="utf-8")


def compared(runs: Path, baseline: Path) -> Iterable[str]:
    """Yield how the median of each figure compares with that of a baseline; both files are of `record`."""
    before = json.loads(baseline.read_text(encoding="utf-8"))
    for name, figures in json.loads(runs.read_text(encoding="utf-8")).items():
        if name in before and (was := median(before[name])):
            yield f"{name:40}{median(figures) / was:6.2f} of {was:.4g}"
