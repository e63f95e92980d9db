"""Start-up, against the import of the libraries that the command cannot do without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import median

from benchmarks.processes import TOOL, command
from benchmarks.sites import site
from benchmarks.table import Row, at_most

TURNS = 7
HELP, PLAN = 2.0, 1.5


def rows() -> Iterator[Row]:
    """Measure ``--help``, and ``plan`` on an empty cluster."""
    yield _ratio("gpu-provision --help", (TOOL, "--help"), "click", HELP)
    with site(1, real=False) as made:
        words = (TOOL, "plan", "--cluster-only", "-q", "-i", str(made.inventory))
        yield _ratio("plan, empty cluster", words, "kubernetes.client", PLAN)


def _ratio(measure: str, words: tuple[str, ...], module: str, limit: float) -> Row:
    """Run both by turns; compare medians."""
    baseline = (sys.executable, "-c", f"import {module}")
    ours, theirs = zip(*((command(*words).seconds, command(*baseline).seconds) for _ in range(TURNS)), strict=True)
    instead = f"{median(ours):.2f} s; python -c 'import {module}' {median(theirs):.2f} s"
    return at_most(measure, "", round(median(ours) / median(theirs), 2), limit, " times", instead=instead)
