"""Many names in few words, and when there are colors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.output.text import ranges, wants_color
from tests.data_file import document

CASES: dict[str, list[list[Any]]] = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("names", "expected"), CASES["ranges"])
def test_runs_of_numbers_become_ranges(names: list[str], expected: str) -> None:
    """Three or more neighbors are a range; the order is the one people count in."""
    assert ranges(names) == expected


@pytest.mark.parametrize(("environ", "terminal", "refused", "expected"), CASES["colors"])
def test_color_is_decided_by_option_environment_and_terminal(
    environ: dict[str, str], *, terminal: bool, refused: bool, expected: bool
) -> None:
    """--no-color, then NO_COLOR, then FORCE_COLOR, then the terminal."""
    assert wants_color(environ, terminal=terminal, refused=refused) is expected
