"""Plain tables for terminals and logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_provision.report.style import PLAIN, Style, width

_GAP = "  "


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], style: Style = PLAIN) -> str:
    """Return rows as columns of equal width under headers; cells may hold colors."""
    body = [[str(cell).replace("\n", r"\n") for cell in row] for row in rows]
    widths = [max(width(row[column]) for row in [list(headers), *body]) for column in range(len(headers))]
    lines = [style.bold(_line(list(headers), widths))]
    lines += [_line(row, widths) for row in body]
    return "\n".join(lines)


def indented(text: str, spaces: int = 2) -> str:
    """Return the text with every line moved to the right."""
    return "\n".join(f"{' ' * spaces}{line}" if line else line for line in text.splitlines())


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f"{cell}{' ' * (columns - width(cell))}" for cell, columns in zip(cells, widths, strict=True))
    return _GAP.join(padded).rstrip()
