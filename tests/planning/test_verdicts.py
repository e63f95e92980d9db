"""A verdict holds for one content and one life of a node's stack, and says what ended that life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.plan import Action
from gpu_provision.model.progress import State
from gpu_provision.planning.plan import plan
from gpu_provision.planning.states import states
from gpu_provision.planning.verdicts import VALIDATIONS, life_in, life_of
from tests.planning.builders import Stack, outdated, terminating, validation_pod, with_node

NODE = "t4-1"
DRIVER, PLUGIN = VALIDATIONS
Happening = Callable[[Stack], None]


def on_node(**fields: Any) -> Happening:
    """Return what changes a node."""

    def happen(made: Stack) -> None:
        changed = Stack(made.inventory, with_node(made.context.facts, NODE, **fields))
        made.context, made.desired = changed.context, changed.desired

    return happen


def to_pod(component: str, change: Callable[[Manifest], Manifest]) -> Happening:
    """Return what changes a component's pod on the node."""
    return lambda made: made.put(change(made.pod(component, NODE)))


def renewed(pod: Manifest) -> Manifest:
    return {**pod, "metadata": {**pod["metadata"], "uid": "another"}}


def restarted(pod: Manifest, container: int = 0) -> Manifest:
    name = [*pod["spec"]["containers"], {"name": "sidecar"}][container]["name"]
    return {**pod, "status": {**pod["status"], "containerStatuses": [{"name": name, "restartCount": 1}]}}


def not_ready(pod: Manifest) -> Manifest:
    return {**pod, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}


def gone(component: str) -> Happening:
    return lambda made: made.remove(made.pod(component, NODE))


ENDS = [
    ("boot", on_node(boot_id="another"), "the node booted", {DRIVER, PLUGIN}),
    ("registration", on_node(uid="another"), "the node booted", {DRIVER, PLUGIN}),
    ("driver", to_pod("driver", renewed), "the driver pod was replaced", {DRIVER, PLUGIN}),
    ("driver container", to_pod("driver", restarted), "the driver pod was replaced", {DRIVER, PLUGIN}),
    ("driver goes", to_pod("driver", terminating), "the driver pod was replaced", {DRIVER, PLUGIN}),
    ("driver gone", gone("driver"), "the driver pod was replaced", {DRIVER, PLUGIN}),
    ("toolkit", to_pod("toolkit", renewed), "the toolkit pod was replaced", {DRIVER, PLUGIN}),
    ("plugin", to_pod("device_plugin", renewed), "the device plugin pod was replaced", {PLUGIN}),
    ("sidecar", to_pod("driver", lambda pod: restarted(pod, -1)), "", set()),
    ("other driver", to_pod("driver", outdated), "", set()),  # still to be replaced: until then it runs on
    ("exporter", to_pod("dcgm_exporter", renewed), "", set()),
    ("pod not ready", to_pod("toolkit", not_ready), "", set()),
    ("NotReady", on_node(ready=False), "", set()),
    ("cordon", on_node(unschedulable=True), "", set()),
]


@pytest.mark.parametrize(("happens", "since", "ends"), [case[1:] for case in ENDS], ids=[case[0] for case in ENDS])
@pytest.mark.parametrize("component", VALIDATIONS)
def test_a_verdict_ends_with_what_it_was_made_for(component: str, happens: Happening, since: str, ends: set) -> None:
    """And with nothing else. The plan says so, and why; another node keeps its own."""
    made = Stack()
    happens(made)
    known = states(made.situation)
    assert known[component, "t4-2"].state is State.READY
    assert (known[component, NODE].state is State.READY) is (component not in ends)
    changes = plan(made.context, made.desired, made.observed).changes
    runs = [each for each in changes if each.action is Action.RUN and each.component == component]
    assert len(runs) == (component in ends)
    for run in runs:
        assert run.effects[0] == f"runs vectorAdd on {NODE}"
        assert run.effects[1].startswith(f"has not run since {since}")


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_a_pod_speaks_for_the_life_that_it_names_alone(phase: str) -> None:
    made = Stack()
    pod = next(item for item in made.validations(DRIVER) if NODE in item["metadata"]["name"])
    made.put(validation_pod(pod, phase))
    to_pod("driver", renewed)(made)
    found = states(made.situation)[DRIVER, NODE]
    assert (found.state, found.reason.partition(" since ")[0]) == (State.PENDING, "has not run")


def test_a_verdict_of_an_earlier_version_is_none() -> None:
    """It does not say for which pods it was made."""
    made = Stack()
    key = DRIVER, NODE
    made.passed[key] = made.passed[key].partition(".")[0]
    assert states(made.situation)[key].reason.startswith("has not run since an earlier version")


@pytest.mark.parametrize("damage", ["", ".", "x", "x.", "x.y", "x.y-z-a-b-c", None])
def test_a_damaged_verdict_is_none(damage: str | None) -> None:
    made = Stack()
    key = DRIVER, NODE
    content = made.passed[key].partition(".")[0]
    made.passed[key] = f"{content}." if damage is None else damage
    assert states(made.situation)[key].state is State.PENDING


def test_a_life_is_short_enough_for_a_label_and_for_a_record() -> None:
    made = Stack()
    lives = [life_in(verdict) for verdict in made.passed.values()]
    assert max(map(len, lives)) <= 35  # planning.sizes counts with that


def test_a_node_that_is_not_there_has_no_life_of_its_own() -> None:
    target = replace(Stack().context.targets[0], facts=None)
    assert life_of(DRIVER, target, {}) == life_of(DRIVER, replace(target, name="another"), {})
