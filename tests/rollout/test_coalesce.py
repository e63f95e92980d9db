"""How far a node goes with one write; test_properties.py has that it ends in the same place."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpu_provision.model.rollout_policy import UpgradePolicy, WaitForCompletion
from gpu_provision.rollout.actions import Action, Cordon, StateTransition
from gpu_provision.rollout.snapshot import Snapshot
from tests.rollout.rules import judge_the_end
from tests.rollout.test_state_machine import ONE, world
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


def test_a_pod_that_came_until_the_cordon_stood_is_evicted() -> None:
    """The driver is restarted only by a look that sees the cordon; that one goes back to the eviction."""
    machine = Machine(name="node-1")
    found = world(machine)
    found.makes_strides = True
    while not machine.cordoned_by:
        found.step()
    machine.work.append(Work(name="train"))
    judge_the_end(found, found.run())
    assert machine.work[0].gone <= found.restarted[0][0]


def test_a_job_that_came_until_the_cordon_stood_is_waited_for() -> None:
    """Where jobs are waited for, nothing follows the cordon before they have been looked for."""
    machine, job = Machine(name="node-1"), Work(name="train", labels={"job": "yes"}, ends=BEGINNING + 60)
    found = world(machine, policy=replace(ONE, wait_for_completion=WaitForCompletion(pod_selector="job=yes")))
    found.makes_strides = True
    while not machine.cordoned_by:
        found.step()
    machine.work.append(job)
    judge_the_end(found, found.run())
    assert job.gone == math.inf
    assert found.restarted[0][0] >= job.ends


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
