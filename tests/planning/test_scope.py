"""What is left of a stack where a run looks after a part of it."""

from __future__ import annotations

from gpu_provision.diagnostics.pods import node_of
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.inventory import ALL, RunSelection
from gpu_provision.model.plan import Action
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import findings, part_of, prepare
from tests.components.builders import fleet, inventory, with_spec
from tests.planning.builders import Stack


def about(part: RunSelection) -> dict[str, list[Manifest]]:
    return {name: list(items) for name, items in prepare(inventory(), fleet(), part)[1].items()}


def test_a_component_comes_with_all_that_it_requires() -> None:
    """And with nothing else. A driver that is replaced has to prove itself."""
    assert list(about(part_of(inventory(), ["node_labels"], []))) == ["prerequisites", "nfd", "node_labels"]
    proof = ["toolkit", "driver_validation", "validator"]
    driver = about(part_of(inventory(), ["driver"], []))
    assert list(driver) == ["prerequisites", "nfd", "node_labels", "driver", *proof]
    assert "DaemonSet" in {item["kind"] for item in driver["validator"]}, "which the proof runs in"
    assert part_of(inventory(), [], []) == ALL
    whole = about(ALL)
    assert about(part_of(inventory(), ["driver"], []))["prerequisites"] == whole["prerequisites"], "one parent for all"


def test_a_limit_narrows_what_is_about_one_node_and_nothing_else() -> None:
    """A DaemonSet serves all nodes, and is the same for every part."""
    whole, some = about(ALL), about(RunSelection(nodes=frozenset({"t4-1"})))
    assert {item["metadata"]["name"] for item in some["node_labels"] if item["kind"] == "Node"} == {"t4-1"}
    assert [node_of(item) for item in some["device_plugin_validation"] if item["kind"] == "Pod"] == ["t4-1"]
    assert some["driver"] == whole["driver"]


def test_what_was_not_looked_at_is_not_pruned() -> None:
    """The exporter is off by now; a run of the driver alone does not take it away."""
    stack = Stack()
    off = with_spec("dcgm_exporter", enabled=False)

    def deleted(part: RunSelection) -> set[str]:
        context, desired = prepare(off, stack.context.facts, part)
        changes = plan(context, desired, stack.observed).changes
        return {change.component for change in changes if change.action is Action.DELETE}

    assert deleted(ALL) == {"dcgm_exporter"}
    assert deleted(RunSelection(nodes=frozenset({"t4-1"}))) == {"dcgm_exporter"}, "it serves all nodes"
    assert deleted(part_of(off, ["driver"], [])) == set()


def test_what_is_left_out_is_reported() -> None:
    """A part is not taken for the whole."""
    part = part_of(inventory(), ["dcgm_exporter"], ["t4-1", "cpu-1"])
    (told,) = (item for item in findings(prepare(inventory(), fleet(), part)[0]) if item.code == "GP380")
    assert told.evidence.endswith("(--target); nodes h100-1, t4-2 (--limit)")
    assert "gfd" in told.evidence
    assert "toolkit" not in told.evidence
    assert not any(item.code == "GP380" for item in findings(prepare(inventory(), fleet())[0]))
