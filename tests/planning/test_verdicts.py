"""Verdicts of vectorAdds and their expiry; the label and startup taint of a validated node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.components.validator import VECTOR_ADD
from gpu_provision.model.cluster import DriverBasis, DriverChoice, Manifest
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Plan
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.specs import StartupTaintSpec
from gpu_provision.planning.states import evaluate_states
from gpu_provision.planning.verdicts import (
    LABEL_PENDING,
    NEVER_RUN,
    STARTUP_TAINT,
    VALIDATIONS,
    Verdict,
    expiry_reason,
    parse_verdict,
    verdict_of,
)
from tests.components.builders import inventory, specs
from tests.planning.builders import (
    VALIDATED,
    Stack,
    labelled,
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
def test_a_verdict_expires_with_its_inputs(component: str, happens: Happening, since: str, ends: set) -> None:
    """And for no other reason. The plan has the reason; the verdict of another node holds."""
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
        ({"state": {"terminated": PASSED}}, State.PENDING),  # the kubelet has not reported its end yet
        ({"state": {"terminated": {"exitCode": 137, "startedAt": LATER}}}, State.PROGRESSING),
        ({"state": {"terminated": {"exitCode": 255, "startedAt": LATER}}}, State.PROGRESSING),
    ],
)
def test_a_vector_add_of_another_boot_or_killed_has_no_verdict(status: dict[str, Any], state: State) -> None:
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
        ("580.2", DriverBasis.READ, "has not run since the host driver changed from 580.1 to 580.2"),
        ("580.1", DriverBasis.READ, ""),
        ("580.2", DriverBasis.LABEL, ""),
    ):
        choice = DriverChoice(on_host=True, version=version, basis=basis)
        on_host = replace(target, driver=choice)
        assert expiry_reason(DRIVER, on_host, "", verdict, made.situation.pods, below=["toolkit"]) == why


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ([{"type": "Ready", "status": "False"}], State.PENDING),
        ([{"type": "Ready", "status": "True", "lastTransitionTime": LATER}], State.PENDING),
        ([{"type": "Ready", "status": "True", "lastTransitionTime": VALIDATED}], State.FAILED),
    ],
    ids=["is not ready", "got ready later", "was ready"],
)
def test_a_failure_counts_only_with_a_driver_that_was_ready(conditions: list[Any], state: State) -> None:
    """A pod that had found the driver before runs its vectorAdd while the next one is built."""
    made = Stack()
    to_pod("driver", lambda pod: {**pod, "status": {**pod["status"], "conditions": conditions}})(made)
    assert _of_validator(made, lambda pod: shown(pod, code=1)).state is state


def test_out_of_memory_is_a_failure() -> None:
    ended = {**vector_add(137, LATER, boot=f"boot-of-{NODE}", said=""), "reason": "OOMKilled"}
    assert _of_validator(Stack(), _with({"state": {"terminated": ended}})).state is State.FAILED


TAINT = {"key": labels.NOT_VALIDATED, "effect": "NoSchedule"}
OTHER = {"key": "example.com/team", "value": "a", "effect": "NoSchedule"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def inventory_with_taint(*, enabled: bool = True, **fields: Any) -> Inventory:
    return inventory(specs=specs(startup_taint=StartupTaintSpec(enabled=enabled)), **fields)


def validated_stack(*, has_label: bool = True, tainted: bool = False, enabled: bool = True, **node: Any) -> Stack:
    """Return a stack in which all has passed, and one node of it."""
    chosen = inventory_with_taint(enabled=enabled)
    facts = labelled(chosen=chosen)
    content = {
        item["metadata"]["name"]: item["metadata"]["labels"]
        for item in Stack(inventory_with_taint()).desired[STARTUP_TAINT]
    }
    nodes = tuple(
        replace(each, labels={**each.labels, **(content.get(each.name, {}) if has_label else {})})
        for each in facts.nodes
    )
    taints = (CORDON, TAINT, OTHER) if tainted else (OTHER,)
    return Stack(chosen, with_node(replace(facts, nodes=nodes), NODE, taints=taints, **node))


def with_labels(other: dict[str, str]) -> Stack:
    """Return a stack in which all has passed, and one node has other labels."""
    facts = validated_stack().context.facts
    node = next(each for each in facts.nodes if each.name == NODE)
    return Stack(inventory_with_taint(), with_node(facts, NODE, labels={**node.labels, **other}))


def forget(made: Stack) -> Manifest:
    """Forget the passed validation of the device plugin; return the pod that runs again."""
    del made.passed[PLUGIN, NODE]
    return next(item for item in made.validations() if NODE in item["metadata"]["name"])


def forget_driver(made: Stack) -> None:
    """Have the validator's pod run its vectorAdd again."""
    pod = made.pod("validator", NODE)
    made.put({**pod, "status": {"phase": "Pending"}})


def label_state(made: Stack) -> NodeState:
    return evaluate_states(made.situation)[STARTUP_TAINT, NODE]


def label_for_now(made: Stack, node: str = NODE) -> Any:
    """Return the desired label of a node's validation for now, ``...`` for none."""
    found = made.situation.desired["node_labels"]
    wanted = next(item["metadata"]["labels"] for item in found if item["metadata"]["name"] == node)
    return wanted.get(labels.VALIDATED, ...)


def changes(made: Stack) -> dict[str, Any]:
    """Return the changed fields of the node, as a plan has them: path -> new value."""
    found: Plan = made.plan
    return {
        field.path: field.new
        for change in found.changes
        if change.ref.kind == "Node" and change.ref.name == NODE
        for field in change.fields
    }


LABEL, NO_TAINT = f'metadata.labels."{labels.VALIDATED}"', f"spec.taints[{labels.NOT_VALIDATED}]"


@pytest.mark.parametrize(
    ("has_label", "tainted", "reason", "written"),
    [
        (True, False, "", set()),
        (False, True, LABEL_PENDING, {LABEL, NO_TAINT}),
        (True, True, LABEL_PENDING, {NO_TAINT}),
    ],
    ids=["labelled", "not labelled yet", "tainted again"],
)
def test_a_validated_node_has_the_label(has_label: bool, tainted: bool, reason: str, written: set[str]) -> None:  # noqa: FBT001  columns of a table
    made = validated_stack(has_label=has_label, tainted=tainted)
    assert (label_state(made).state, label_state(made).reason) == (State.PROGRESSING if reason else State.READY, reason)
    assert changes(made).keys() == written
    assert not has_label or label_for_now(made) is ...


@pytest.mark.parametrize(("forgets", "why"), [(forget, NEVER_RUN), (forget_driver, "Pending")])
def test_a_node_has_no_label_while_a_validation_runs(forgets: Any, why: str) -> None:
    made = validated_stack(has_label=False, tainted=True)
    forgets(made)
    assert (label_state(made).state, label_state(made).reason) == (State.PENDING, why)


def reboot(made: Stack) -> None:
    """Reboot the machine: verdicts are of another boot, and the driver starts."""
    forget_driver(made)
    made.put({**made.pod("driver", NODE), "status": {"phase": "Running"}})


def edit_inventory(made: Stack) -> None:
    """Make the verdict one of earlier content, without a replaced pod."""
    key = PLUGIN, NODE
    made.passed[key] = f"earlier-content.{made.passed[key].partition('.')[2]}"


def delay_driver(made: Stack) -> None:
    """Make the node wait for its rollout."""
    edit_inventory(made)
    made.put(outdated(made.pod("driver", NODE)))


def delay_driver_and_revalidate(made: Stack) -> None:
    """Make the node wait for its rollout, with a replaced pod of the validator whose vectorAdd has not ended."""
    delay_driver(made)
    made.put({**made.pod("validator", NODE), "status": {"phase": "Pending"}})


def delay_driver_and_reboot(made: Stack) -> None:
    """Make the node wait for its rollout, after a reboot."""
    delay_driver(made)
    boot = next(each for each in made.context.facts.nodes if each.name == NODE)
    again = {target.name: target for target in made.context.targets}[NODE]
    changed = replace(again, facts=replace(boot, boot_id="another"))
    targets = tuple(changed if each.name == NODE else each for each in made.context.targets)
    made.context = replace(made.context, targets=targets)


def fail_validation(made: Stack) -> None:
    """Let the validation run again and fail."""
    made.put(validation_pod(forget(made), "Failed"))


def succeed_without_record(made: Stack) -> None:
    """Let the validation succeed in a run that is killed before the record."""
    made.put(validation_pod(forget(made), "Succeeded"))


@pytest.mark.parametrize("happens", [reboot, fail_validation, delay_driver_and_reboot])
def test_a_label_is_removed_when_the_verdict_expires(happens: Any) -> None:
    made = validated_stack()
    happens(made)
    assert label_for_now(made) is None
    assert evaluate_states(made.situation)["node_labels", NODE].state is State.PROGRESSING
    assert label_for_now(made, "t4-2") is ...


@pytest.mark.parametrize("happens", [delay_driver, delay_driver_and_revalidate, succeed_without_record])
def test_a_label_stays_while_the_validated_content_runs(happens: Any) -> None:
    """Otherwise every node of a fleet would lose the label until the end of a rollout."""
    made = validated_stack()
    happens(made)
    assert label_for_now(made) is ...
    assert evaluate_states(made.situation)["node_labels", NODE].state is State.READY


def test_a_node_that_keeps_its_driver_keeps_its_label() -> None:
    """Otherwise the plan would never be empty."""
    made = with_labels({"nvidia.com/gpu-driver-upgrade.skip": "true", labels.VALIDATED: "of-earlier-content"})
    delay_driver(made)
    assert label_state(made).state is State.READY
    assert changes(made) == {}


def test_a_node_without_validations_has_no_label() -> None:
    """By a user's label; the taint stays, and the plan has a finding."""
    made = with_labels({labels.DEPLOY_OPERANDS: "false"})
    assert (STARTUP_TAINT, NODE) not in evaluate_states(made.situation)
    assert label_for_now(made) is None


def test_a_disabled_startup_taint_removes_label_and_taint() -> None:
    """No other program would ever take the taint off."""
    made = validated_stack(enabled=False, tainted=True)
    forget(made)
    assert changes(made) == {LABEL: None, NO_TAINT: None}
    assert STARTUP_TAINT not in made.desired


def test_a_node_that_leaves_the_inventory_loses_both() -> None:
    before = validated_stack(tainted=True)
    left = inventory_with_taint(nodes=tuple(node for node in inventory().nodes if node.name != NODE))
    assert changes(Stack(left, before.context.facts)).keys() >= {LABEL, NO_TAINT}


def test_the_plan_names_a_temporary_removal_of_a_label() -> None:
    """The device plugin's pod is replaced, and the label is the same before and after."""
    made = validated_stack()
    made.put(outdated(made.pod("device_plugin", NODE)))
    (change,) = (each for each in made.plan.changes if each.ref.kind == "Node")
    assert (change.component, change.ref.name, change.fields) == ("startup_taint", "t4-1", ())
    assert change.effects == (f"{labels.VALIDATED} goes until the validations have passed on t4-1",)
