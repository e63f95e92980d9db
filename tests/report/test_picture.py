"""The picture of a run on a terminal."""

from __future__ import annotations

import re

import pytest

from gpu_provision.model.progress import State, Transition
from gpu_provision.report.lanes import Lanes, lanes_of
from gpu_provision.report.picture import Size, picture
from gpu_provision.report.style import Style, for_terminal

WAITS = "waits for a slot: max_parallel_upgrades is 1"


def rollout() -> Lanes:
    """Return four nodes in the middle of a rollout, 40 seconds old: done, failed, evicting, waiting."""

    def on(node: str, *steps: tuple[float, str, str], state: State = State.PROGRESSING) -> list[Transition]:
        return [
            Transition(at=at, component="driver", node=node, state=state, step=step, reason=reason)
            for at, step, reason in steps
        ]

    return lanes_of(
        [
            *on("n1", (0, "cordon-required", ""), (4, "pod-restart-required", "")),
            *on("n1", (10, "upgrade-done", ""), state=State.READY),
            *on("n2", (0, "upgrade-required", WAITS), (10, "cordon-required", ""), (14, "pod-restart-required", "")),
            *on("n2", (25, "upgrade-failed", "no PCI bus"), state=State.FAILED),
            *on("n3", (0, "upgrade-required", WAITS), (28, "pod-deletion-required", "default/train")),
            *on("n4", (0, "upgrade-required", WAITS)),
        ]
    )


def test_nodes_are_rows_with_their_past_and_what_they_wait_for() -> None:
    """What goes on comes first, then failures, then those that wait, then those that are done."""
    assert picture(rollout(), 40.0, Size(80, 24)) == [
        "n3  .................eeeeeeee  GPU pods leave 12 s: default/train",
        "n2  ......ccrrrrrrr!!!!!!!!!!  driver failed: no PCI bus",
        "n4  .........................  waits for a slot: max_parallel_upgrades is 1",
        "n1  ccrrrr+++++++++++++++++++  ready",
        ". waiting, c cordon, e GPU pods leave, r driver restarts, + ready, ! failed",
    ]


def test_what_does_not_fit_is_counted() -> None:
    """The rows that are left are those that matter most."""
    lines = picture(rollout(), 40.0, Size(80, 5))
    assert [line.split()[0] for line in lines[:2]] == ["n3", "n2"]
    assert lines[2] == "and 2 more: 1 waiting, 1 ready"


@pytest.mark.parametrize("columns", [120, 80, 50, 40, 25, 12])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    """A narrow one loses the past first, then words; colors take no room."""
    lines = map(for_terminal, picture(rollout(), 40.0, Size(columns, 24), Style(enabled=True)))
    plain = [re.sub(r"\x1b\[\d*m", "", line) for line in lines]
    assert plain == picture(rollout(), 40.0, Size(columns, 24))
    assert all(len(line) < columns for line in plain)


def test_there_is_no_picture_without_room_or_nodes() -> None:
    """Then the line above says it all."""
    assert picture(rollout(), 40.0, Size(80, 3)) == []
    assert picture(Lanes(), 40.0, Size(80, 24)) == []
