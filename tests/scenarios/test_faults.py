"""An API server that spoils a fifth of its answers: every run comes to its end at first try, as if nothing had been.

`make faults` runs as many seeds as one likes, and writes the table.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

from tests.faults.scenarios import SCENARIOS
from tests.faults.trials import Trials, table

RATE = 0.2
PAIRS = {"sandbox": [(3, "destroy")], "real": [*product((1, 2), SCENARIOS)]}


def test_runs_converge_on_a_server_that_answers_badly(server: str, opening: Callable, tmp_path: Path) -> None:
    """On the sandbox one, for the time that it takes; on a real control plane each seed has all scenarios."""
    rows = list(Trials(opening, RATE, tmp_path).rows(PAIRS[server]))
    assert all(row.is_converged for row in rows), table(rows)
    assert all(row.faults for row in rows), "a run that met no fault shows nothing"
