"""Many names in few words."""

from __future__ import annotations

import pytest

from gpu_provision.output.text import ranges, wants_color


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["gpu-01", "gpu-02", "gpu-03"], "gpu-01..03"),
        (["gpu-8", "gpu-9", "gpu-10", "gpu-11"], "gpu-8..11"),
        (["gpu-08", "gpu-09", "gpu-10", "gpu-12"], "gpu-08..10, gpu-12"),
        (["gpu-9", "gpu-010", "gpu-011"], "gpu-9, gpu-010, gpu-011"),
        (["t4-1", "t4-2"], "t4-1, t4-2"),
        (["b", "a"], "a, b"),
        (["n1.example", "n2.example", "n3.example"], "n1.example..n3.example"),
        (["a1", "b2", "c3"], "a1, b2, c3"),
        (["gpu-1", "gpu-1"], "gpu-1"),
        (
            [f"node-{letter}" for letter in "abcdefghijkl"],
            f"{', '.join(f'node-{each}' for each in 'abcdefgh')} and 4 more",
        ),
        ([], ""),
    ],
)
def test_runs_of_numbers_become_ranges(names: list[str], expected: str) -> None:
    """Three or more neighbors are a range; the order is the one people count in."""
    assert ranges(names) == expected


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
