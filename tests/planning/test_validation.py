"""What a vectorAdd has shown holds until something that it stands on starts again, and the plan says what did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components.validator import VECTOR_ADD
from gpu_provision.model.cluster import DriverBasis, DriverChoice, Manifest
from gpu_provision.model.plan import Action
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import evaluate_states
from gpu_provision.planning.validation import VALIDATIONS, Verdict, expiry_reason, parse_verdict, verdict_of
from tests.planning.builders import (
    VALIDATED,
    Stack,
    outdated,
    restarted,
    shown,
    terminating,
    validation_pod,
    vector_add,
    with_node,
)

NODE, LATER = "t4-1", "2026-11-21T08:00:00Z"
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
    return restarted(pod, LATER)


def with_sidecar(pod: Manifest) -> Manifest:
    sidecar = {"name": "sidecar", "state": {"running": {"startedAt": LATER}}}
    return {**pod, "status": {**pod["status"], "containerStatuses": [*pod["status"]["containerStatuses"], sidecar]}}


def not_ready(pod: Manifest) -> Manifest:
    return {**pod, "status": {**pod["status"], "conditions": [{"type": "Ready", "status": "False"}]}}


def crashing(pod: Manifest) -> Manifest:
    main = {**pod["status"]["containerStatuses"][0], "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    return {**pod, "status": {**pod["status"], "conditions": [], "containerStatuses": [main]}}


def gone(component: str) -> Happening:
    return lambda made: made.remove(made.pod(component, NODE))


ENDS = [
    ("boot", on_node(boot_id="another"), "the node booted", {DRIVER, PLUGIN}),
    ("driver", to_pod("driver", renewed), "the driver pod was replaced", {DRIVER, PLUGIN}),
    ("same second", to_pod("driver", lambda pod: restarted(pod, VALIDATED)), "the driver pod", {DRIVER, PLUGIN}),
    ("driver goes", to_pod("driver", terminating), "the driver pod was replaced", {DRIVER, PLUGIN}),
    ("driver gone", gone("driver"), "the driver pod was replaced", {DRIVER, PLUGIN}),
    ("driver crashes", to_pod("driver", crashing), "the driver pod was replaced or restarted", {DRIVER, PLUGIN}),
    ("toolkit", to_pod("toolkit", renewed), "the toolkit pod was replaced", {DRIVER, PLUGIN}),
    ("plugin", to_pod("device_plugin", renewed), "the device plugin pod was replaced", {PLUGIN}),
    ("sidecar", to_pod("driver", with_sidecar), "", set()),
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
    known = evaluate_states(made.situation)
    assert known[component, "t4-2"].state is State.READY
    assert (known[component, NODE].state is State.READY) is (component not in ends)
    changes = made.plan.changes
    runs = [each for each in changes if each.action is Action.RUN and each.component == component]
    assert len(runs) == (component in ends)
    for run in runs:
        assert run.effects[0] == f"runs vectorAdd on {NODE}"
        assert run.effects[1].startswith(f"has not run since {since}")


def _state(made: Stack, component: str = DRIVER) -> NodeState:
    return evaluate_states(made.situation)[component, NODE]


def _of_validator(made: Stack, change: Callable[[Manifest], Manifest]) -> NodeState:
    to_pod("validator", change)(made)
    return _state(made)


def _with(status: dict[str, Any]) -> Callable[[Manifest], Manifest]:
    def change(pod: Manifest) -> Manifest:
        return {**pod, "status": {"phase": "Pending", "initContainerStatuses": [{"name": VECTOR_ADD, **status}]}}

    return change


def test_the_vector_add_of_the_validator_is_the_verdict() -> None:
    """A failure stays one while the kubelet waits for the next try, and during it."""
    failed = vector_add(1, LATER, boot=f"boot-of-{NODE}", said="Failed to allocate device vector A\n\n")
    found = [
        _of_validator(Stack(), _with(status))
        for status in (
            {"state": {"terminated": failed}},
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": failed}},
            {"state": {"running": {"startedAt": LATER}}, "lastState": {"terminated": failed}},
        )
    ]
    assert {(each.state, each.reason) for each in found} == {
        (State.FAILED, "the validation failed: Failed to allocate device vector A")
    }


PASSED = vector_add(0, LATER, boot="of-before")


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"state": {"running": {}}}, State.PROGRESSING),
        ({"state": {"waiting": {"reason": "PodInitializing"}}}, State.PROGRESSING),
        ({"state": {"running": {}}, "lastState": {"terminated": PASSED}}, State.PROGRESSING),  # after a reboot
        ({"state": {"terminated": PASSED}}, State.PENDING),  # the kubelet has not told of its end yet
        ({"state": {"terminated": {"exitCode": 137, "startedAt": LATER}}}, State.PROGRESSING),
        ({"state": {"terminated": {"exitCode": 255, "startedAt": LATER}}}, State.PROGRESSING),
    ],
)
def test_what_has_not_ended_by_itself_in_this_boot_shows_nothing(status: dict[str, Any], state: State) -> None:
    assert _of_validator(Stack(), _with(status)).state is state


def test_a_vector_add_for_other_content_has_not_run() -> None:
    assert _of_validator(Stack(), outdated).reason == "has not run for this content"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_began_before_the_driver_shows_nothing(phase: str) -> None:
    made = Stack()
    pod = next(item for item in made.validations() if NODE in item["metadata"]["name"])
    made.put(validation_pod(pod, phase))
    to_pod("driver", renewed)(made)
    assert _state(made, PLUGIN).state is State.PENDING


@pytest.mark.parametrize("later", ["pod", "record"])
def test_the_later_of_pod_and_record_counts(later: str) -> None:
    """A run that was killed has left the pod; another one has repeated the validation since."""
    made = Stack()
    pod = next(item for item in made.validations() if NODE in item["metadata"]["name"])
    began = {"pod": "2026-11-21T07:45:00Z", "record": "2026-11-21T07:15:00Z"}[later]
    made.put(validation_pod(pod, "Failed", began))
    assert _state(made, PLUGIN).state is {"pod": State.FAILED, "record": State.READY}[later]


@pytest.mark.parametrize("damage", ["", ".", "x", "x.", "x.y", "x.y-z-a-b-c", "a.b.c.d", "content.life.of-a-version"])
def test_a_damaged_verdict_is_none(damage: str) -> None:
    made = Stack()
    made.passed[PLUGIN, NODE] = damage
    assert _state(made, PLUGIN).state is State.PENDING


def test_a_verdict_is_short_and_read_as_it_was_written() -> None:
    made = Verdict("0123456789abcdef" * 2, "0c7a1e0e-6b0c-4b7e-8c4b-1f8a4f6e2d11", VALIDATED)
    assert parse_verdict(str(made)) == made
    assert len(str(made)) <= 90  # planning.prepare counts with that


def test_a_host_whose_driver_changed_is_validated_again() -> None:
    """Where the host was read; a label may be of an earlier driver."""
    made = Stack()
    target = next(each for each in made.context.targets if each.name == NODE)
    verdict = verdict_of(shown(made.pod("validator", NODE), said="driver 580.1\nTest PASSED"))
    assert verdict
    assert verdict.driver == "580.1"
    for version, basis, why in (
        ("580.2", DriverBasis.READ, "has not run since the host's driver changed from 580.1 to 580.2"),
        ("580.1", DriverBasis.READ, ""),
        ("580.2", DriverBasis.LABEL, ""),
    ):
        choice = DriverChoice(on_host=True, version=version, basis=basis)
        on_host = replace(target, driver=choice)
        assert expiry_reason(DRIVER, on_host, "", verdict, made.situation.pods, below=["toolkit"]) == why


def test_out_of_memory_is_a_failure() -> None:
    ended = {**vector_add(137, LATER, boot=f"boot-of-{NODE}", said=""), "reason": "OOMKilled"}
    assert _of_validator(Stack(), _with({"state": {"terminated": ended}})).state is State.FAILED
