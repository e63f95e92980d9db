"""The table of trials, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.faults.trials import Row

_HEADINGS = ("seed", "scenario", "exit", "seconds", "plan afterwards", "created twice", "traceback", "faults injected")
_SHOWN = 3
_AS_WANTED = {"destroy": "nothing left"}


def line(row: Row) -> str:
    """Return a line about a trial."""
    ended = "converged" if row.is_converged else f"exit {row.exit}, {row.after or 'plan empty'}"
    return f"seed {row.seed} {row.scenario}: {ended}; {row.seconds:.1f} s, {sum(row.faults.values())} faults"


def table(rows: Sequence[Row]) -> str:
    """Return the table, and how many of the trials converged."""
    converged = sum(row.is_converged for row in rows)
    lines = [_HEADINGS, ["---"] * len(_HEADINGS), *map(_cells, rows)]
    return "\n".join((*map(_joined, lines), "", f"{converged} of {len(rows)} converged.", ""))


def _joined(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _twice(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(set(names))[:_SHOWN])
    return f"{len(names)}: {shown}".replace("|", "\\|") if names else "0"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.seed),
        row.scenario,
        row.exit,
        f"{row.seconds:.1f}",
        (row.after or _AS_WANTED.get(row.scenario, "empty")).replace("|", "\\|").replace("\n", " "),
        _twice(row.twice),
        "yes" if row.has_traceback else "no",
        ", ".join(f"{count} {fault.value}" for fault, count in row.faults.items()) or "0",
    )
