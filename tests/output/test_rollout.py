"""A rollout in advance as people and scripts read it; tests/rollout/test_preview.py has what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from gpu_provision.model.plan import NodePreview, Schedule, Wave
from gpu_provision.output import plan, rollout
from gpu_provision.output.text import indented

Golden = Callable[[str, str], None]


def test_a_thousand_nodes_that_are_alike_take_a_few_lines(samples: ModuleType, golden: Golden) -> None:
    """Waves, evictions and skipped nodes in ranges; what differs has a line of its own."""
    golden("rollout", rollout.text(samples.ROLLOUT))


def test_what_is_cut_short_is_counted_and_json_has_all_of_it(samples: ModuleType) -> None:
    """A plan of a thousand owners is still a page; nothing is lost."""
    nodes = tuple(
        NodePreview(
            node=f"gpu-{number}", why=samples.WHY, evicts=(replace(samples.train(number), owner=f"Job {number}"),)
        )
        for number in range(100)
    )
    schedule = Schedule(waves=(Wave(nodes=nodes),))
    lines = rollout.text(schedule).splitlines()
    assert sum("will evict" in line for line in lines) == 12
    assert lines[-1].strip() == "and 88 more lines of this kind; --json has all of them"
    told = json.dumps(rollout.document(schedule))
    assert all(f"ml/train-{number}".rpartition("/")[2] in told for number in range(100))


def test_waves_keep_their_order_whatever_the_names(samples: ModuleType) -> None:
    """With order idle_first node-9 may well come before node-2."""
    waves = tuple(
        Wave(nodes=(NodePreview(node=f"node-{number}", why=samples.WHY),)) for number in (9, 2, 3, 4, 1, 8, 5)
    )
    assert "  waves 1..7, one node at a time: node-9, node-2..4, node-1, node-8, node-5" in rollout.text(
        Schedule(waves=waves)
    )


def test_a_plan_has_it_and_counts_the_drivers(samples: ModuleType) -> None:
    """Between the changes and the findings; null in JSON where no driver is replaced."""
    with_rollout = replace(samples.EMPTY_PLAN, changes=(samples.upgrade(),), rollout=samples.ROLLOUT)
    text = plan.text(with_rollout)
    assert indented(rollout.text(samples.ROLLOUT)) in text
    assert "1001 drivers to replace" in text.splitlines()[-1]
    assert plan.document(with_rollout)["rollout"] == rollout.document(samples.ROLLOUT)
    assert plan.document(samples.EMPTY_PLAN)["rollout"] is None
