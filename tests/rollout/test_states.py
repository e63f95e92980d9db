"""Whose cordon a node has, and what is said of nodes that a run leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.model.cluster import NodeFacts
from gpu_provision.rollout import states
from gpu_provision.rollout.states import cordoned_by, nodes_left_behind

OURS = {states.CORDONED: states.MANAGER}
THEIRS = {states.WAS_CORDONED: "true", states.CORDONED_BY: "kubectl-cordon"}
REBOOT = {labels.CORDONED: "reboot since 2026-11-21T08:00:00Z"}
FAILED = OURS | {states.FAILED_IN: "pod-restart-required"}
HAND = {"cordoned_by": "kubectl-cordon", "cordoned_at": "2026-11-21T08:00:00Z"}
RESTART = "pod-restart-required"


def node(step: str = "", name: str = "t4-1", **fields: Any) -> NodeFacts:
    """A cordoned node of the inventory ``prod``."""
    found = {labels.INVENTORY: "prod"} | ({states.STATE: step} if step else {})
    return NodeFacts(name=name, **{"labels": found, "unschedulable": True, **fields})


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        pytest.param(node(unschedulable=False), "", id="no cordon"),
        pytest.param(node(), "unknown", id="no managed fields"),
        pytest.param(node(**HAND), "kubectl-cordon, 2026-11-21T08:00:00Z", id="by hand"),
        pytest.param(node(RESTART, annotations=OURS), f"gpu-provision: {RESTART}", id="of a rollout"),
        pytest.param(
            node("upgrade-failed", annotations=FAILED),
            f"gpu-provision: upgrade-failed in {RESTART}",
            id="of a rollout that failed",
        ),
        pytest.param(
            node(RESTART, annotations=OURS, **HAND),
            "kubectl-cordon, 2026-11-21T08:00:00Z",
            id="by hand after the rollout's own",
        ),
        pytest.param(
            node(RESTART, annotations=THEIRS, **HAND),
            "kubectl-cordon, 2026-11-21T08:00:00Z",
            id="by hand before the rollout",
        ),
        pytest.param(node(annotations=REBOOT), "gpu-provision: reboot since 2026-11-21T08:00:00Z", id="for a reboot"),
    ],
)
def test_a_cordon_is_reported_with_whose_it_is(seen: NodeFacts, told: str) -> None:
    assert cordoned_by(seen) == told


@pytest.mark.parametrize(
    ("seen", "what", "next_run"),
    [
        pytest.param(
            node("pod-deletion-required", annotations=OURS),
            "t4-1 stays cordoned (pod-deletion-required)",
            "has not been touched",
            id="before the driver is touched",
        ),
        pytest.param(
            node(RESTART, annotations=OURS), f"t4-1 stays cordoned ({RESTART})", "may have no driver", id="after that"
        ),
        pytest.param(
            node("upgrade-failed", annotations=FAILED),
            f"t4-1 stays cordoned (upgrade-failed in {RESTART})",
            "tries once more",
            id="failed",
        ),
        pytest.param(
            node(annotations=OURS), "t4-1 stays cordoned (driver rollout)", "resumes", id="the label was removed"
        ),
        pytest.param(
            node(RESTART, annotations=THEIRS, **HAND),
            f"t4-1 stays in the middle of the driver rollout ({RESTART}), "
            "cordoned by kubectl-cordon, 2026-11-21T08:00:00Z",
            "resumes",
            id="a cordon that was there before",
        ),
        pytest.param(
            node(RESTART, annotations=OURS, unschedulable=False),
            f"t4-1 stays in the middle of the driver rollout ({RESTART}), not cordoned",
            "resumes",
            id="uncordoned by hand",
        ),
        pytest.param(
            node(annotations=REBOOT),
            "t4-1 stays cordoned (reboot since 2026-11-21T08:00:00Z)",
            "once the host is ready",
            id="for a reboot",
        ),
    ],
)
def test_what_stays_is_reported_with_what_the_next_run_does(seen: NodeFacts, what: str, next_run: str) -> None:
    (found,) = nodes_left_behind([seen], "prod")
    assert found.what == what
    assert next_run in found.consequence
    is_ours = what.startswith("t4-1 stays cordoned")
    assert ("kubectl uncordon t4-1" in found.fix) == is_ours, "another manager's cordon is not for us to lift"


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(node(**HAND), id="cordoned by hand alone"),
        pytest.param(node("upgrade-done", unschedulable=False), id="done"),
        pytest.param(node("upgrade-required", unschedulable=False), id="not begun"),
        pytest.param(node(RESTART, annotations=OURS, labels={labels.INVENTORY: "other"}), id="of another stack"),
    ],
)
def test_what_no_run_has_begun_is_not_told(seen: NodeFacts) -> None:
    assert nodes_left_behind([seen], "prod") == ()


def test_equal_nodes_share_one_warning() -> None:
    """Of many nodes eight are named."""
    same = [node(RESTART, f"gpu-{number:02}", annotations=OURS) for number in range(1, 11)]
    other = node("upgrade-failed", "t4-1", annotations=FAILED)
    first, second = nodes_left_behind([*same, other], "prod")
    assert first.what.startswith("gpu-01, gpu-02,")
    assert first.what.endswith(f"gpu-08 and 2 more stay cordoned ({RESTART})")
    assert second.what.startswith("t4-1 stays")
