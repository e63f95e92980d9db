"""A plan with its rollout; tests/scenarios/test_rollout_plans.py has the reading of it."""

from __future__ import annotations

from gpu_provision.engine.outlook import foreseen
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.model.rollout import Outlook, Schedule, Wave


def validation(node: str) -> Change:
    return Change(
        component="driver_validation",
        action=Action.RUN,
        ref=ObjectRef("v1", "Pod", "gpu-operator-resources", f"validation-{node}"),
        manifest={"kind": "Pod", "spec": {"nodeName": node}},
    )


def test_a_validation_is_certain_only_where_no_other_node_has_to_do_well_first() -> None:
    """Later waves follow if earlier ones go well; a node that is left out may never get what is to be validated."""
    waves = tuple(Wave(nodes=(Outlook(node=node, why="driver 580 is wanted"),)) for node in ("first", "second"))
    schedule = Schedule(waves=waves, skipped=(("left-out", "the node is NotReady"),))
    changes = tuple(map(validation, ("first", "second", "left-out", "elsewhere")))
    plan = Plan(inventory="a", release="b", cluster="c", components=("driver_validation",), changes=changes)
    made = foreseen(plan, schedule)
    assert [change.certain for change in made.changes] == [True, False, False, True]
    assert made.rollout is schedule


def test_a_driver_that_is_left_as_it_is_restarts_no_pod() -> None:
    """Whatever its DaemonSet says: with auto_upgrade off, or where nothing may be evicted."""
    daemonset = ObjectRef("apps/v1", "DaemonSet", "gpu-operator-resources", "driver")
    change = Change(component="driver", action=Action.UPDATE, ref=daemonset, nodes=("first", "left-out"))
    plan = Plan(inventory="a", release="b", cluster="c", components=("driver",), changes=(change,))
    skipped = (("left-out", "driver 580 is wanted, but auto_upgrade is off"),)
    (some,) = foreseen(plan, Schedule(skipped=skipped)).changes
    assert (some.nodes, some.effects) == (("first",), ())
    (none,) = foreseen(plan, Schedule(skipped=(*skipped, ("first", "the node is NotReady")))).changes
    assert (none.nodes, none.effects) == ((), ("no driver restart",))
