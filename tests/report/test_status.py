"""The status tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from gpu_provision.model.progress import State
from gpu_provision.report import status

Golden = Callable[[str, str], None]


def test_the_tables_read_as_designed(samples: ModuleType, golden: Golden) -> None:
    """Components, nodes, evidence."""
    golden("status", status.text(samples.STATUS))


def test_the_stack_is_ready_when_every_component_and_gpu_node_is(samples: ModuleType) -> None:
    """A node without a GPU does not count."""
    ready = replace(
        samples.STATUS,
        components=tuple(replace(row, state=State.READY) for row in samples.STATUS.components),
        nodes=(samples.STATUS.nodes[0], replace(samples.STATUS.nodes[1], state=State.PENDING)),
    )
    assert status.is_ready(ready)
    assert not status.is_ready(samples.STATUS)


def test_an_unknown_number_is_a_dash(samples: ModuleType) -> None:
    """Nobody registered nvidia.com/gpu is not the same as none allocatable."""
    row = replace(samples.STATUS.nodes[0], allocatable=0, gpus=None)
    cells = status.nodes([row]).splitlines()[1].split()
    assert cells[5:8] == ["-", "580.95.05", "0"]


def test_equal_logs_are_shown_once_with_all_their_nodes(samples: ModuleType) -> None:
    """Six passed validations are six lines, not thirty-six."""
    second = replace(samples.EVIDENCE, node="t4-2", pod="nvidia-driver-validation-t4-2-9f8e7d6c")
    text = status.evidence([samples.EVIDENCE, second])
    assert text.count("Test PASSED") == 1
    assert text.startswith("driver_validation on t4-1, t4-2: passed (2 pods, such as ")


def test_a_failed_validation_stands_apart(samples: ModuleType) -> None:
    """What differs is never folded away."""
    failed = replace(samples.EVIDENCE, node="t4-2", passed=False, lines=("Failed to allocate",))
    assert "driver_validation on t4-2: failed" in status.evidence([samples.EVIDENCE, failed])


def test_a_driver_of_the_hosts_own_is_marked(samples: ModuleType) -> None:
    """Whoever upgrades it looks elsewhere than in the inventory."""
    row = replace(samples.STATUS.nodes[0], driver="550.90.07", driver_on_host=True)
    assert "550.90.07 (host)" in status.nodes([row])
    document = status.document(replace(samples.STATUS, nodes=(row,)))
    assert document["nodes"][0]["driver_on_host"] is True
