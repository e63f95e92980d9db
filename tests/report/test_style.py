"""When colors are used."""

from __future__ import annotations

import pytest

from gpu_provision.report.style import wants_color


@pytest.mark.parametrize(
    ("environ", "terminal", "refused", "expected"),
    [
        ({"TERM": "xterm"}, True, False, True),
        ({"TERM": "xterm"}, False, False, False),
        ({"TERM": "dumb"}, True, False, False),
        ({}, True, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False, True),
        ({"FORCE_COLOR": "1"}, False, False, True),
        ({"FORCE_COLOR": "0"}, False, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False, False),
        ({"FORCE_COLOR": "1"}, True, True, False),
    ],
)
def test_color_is_decided_by_option_environment_and_terminal(
    environ: dict[str, str], *, terminal: bool, refused: bool, expected: bool
) -> None:
    """--no-color, then NO_COLOR, then FORCE_COLOR, then the terminal."""
    assert wants_color(environ, terminal=terminal, refused=refused) is expected
