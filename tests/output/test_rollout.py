"""A rollout in advance as people and scripts read it; tests/rollout/test_preview.py has what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from gpu_provision.model.plan import NodePreview, Schedule, Wave
from gpu_provision.output import rollout
from tests.output import samples

Golden = Callable[[str, str], None]


def test_a_thousand_nodes_that_are_alike_take_a_few_lines(golden: Golden) -> None:
    """Waves, evictions and skipped nodes in ranges; what differs has a line of its own."""
    golden("rollout", rollout.text(samples.ROLLOUT))


def test_what_is_cut_short_is_counted_and_json_has_all_of_it() -> None:
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


def test_waves_keep_their_order_whatever_the_names() -> None:
    """With order idle_first node-9 may well come before node-2."""
    waves = tuple(
        Wave(nodes=(NodePreview(node=f"node-{number}", why=samples.WHY),)) for number in (9, 2, 3, 4, 1, 8, 5)
    )
    assert "  waves 1..7, one node at a time: node-9, node-2..4, node-1, node-8, node-5" in rollout.text(
        Schedule(waves=waves)
    )
