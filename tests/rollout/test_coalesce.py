"""How far a node goes with one write; test_properties.py has that it ends in the same place."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpu_provision.model.rollout_policy import UpgradePolicy, WaitForCompletion
from gpu_provision.rollout.snapshot import Action, Cordon, Snapshot, StateTransition
from tests.rollout.rules import ONE, judge_the_end, world
from tests.rollout.world import BEGINNING, Machine, Trouble, Work, World


def writes(found: World) -> list[StateTransition]:
    """Run a rollout to its end, and return what was written to nodes."""
    moves: list[StateTransition] = []

    def note(_: Snapshot, actions: tuple[Action, ...]) -> None:
        moves.extend(action for action in actions if isinstance(action, StateTransition))

    found.makes_strides = True
    found.judges.append(note)
    judge_the_end(found, found.run())
    return moves


def way(found: World) -> list[str]:
    return [move.to.value for move in writes(found)]


def test_a_node_without_work_takes_four_writes() -> None:
    """Who waits is written first; the cordon comes with the restart's state; driver and validation take their time."""
    assert way(world(Machine(name="node-1"))) == [
        "upgrade-required",
        "pod-restart-required",
        "validation-required",
        "upgrade-done",
    ]


@pytest.mark.parametrize("is_job", [False, True], ids=["a pod is evicted", "a job is waited for"])
def test_what_came_until_the_cordon_stood_is_seen(*, is_job: bool) -> None:
    """The driver is restarted only by a look that sees the cordon; that one goes back."""
    machine, late = Machine(name="node-1"), Work(name="train", labels={"job": "yes"}, ends=BEGINNING + 60)
    wait = WaitForCompletion(pod_selector="job=yes" if is_job else "")
    found = world(machine, policy=replace(ONE, wait_for_completion=wait))
    found.makes_strides = True
    while not machine.cordoned_by:
        found.step()
    machine.work.append(late)
    judge_the_end(found, found.run())
    assert (late.gone == math.inf) is is_job
    assert found.restarted[0][0] >= (late.ends if is_job else late.gone)


def test_a_state_that_lasts_is_seen() -> None:
    """A job is waited for, then a pod is evicted."""
    job, server = Work(name="train", labels={"job": "yes"}, ends=BEGINNING + 60), Work(name="web")
    wait = WaitForCompletion(pod_selector="job=yes")
    states = way(world(Machine(name="node-1", work=[job, server]), policy=replace(ONE, wait_for_completion=wait)))
    assert states[1:4] == ["wait-for-jobs-required", "pod-deletion-required", "pod-restart-required"]


def test_a_node_that_was_cordoned_is_looked_at_before() -> None:
    """No pod has come to it since, so its start and the rest are one write; the cordon stays as it is."""
    moves = writes(world(Machine(name="node-1", cordoned_by="kubectl-cordon", is_foreign=True)))
    assert [move.to.value for move in moves[:2]] == ["upgrade-required", "pod-restart-required"]
    assert {move.cordon for move in moves} == {Cordon.KEEP}


@pytest.mark.parametrize("trouble", [Trouble.DISPROVEN, Trouble.HANGS])
def test_a_failure_is_written_by_itself(trouble: Trouble) -> None:
    """No other node may start before it is known."""
    moves = writes(world(Machine(name="node-1", trouble=trouble), policy=UpgradePolicy()))
    assert moves[-1].to.value == "upgrade-failed"
    assert moves[-1].reason == dict(moves[-1].annotations)["gpu-provision.io/upgrade-reason"]
