"""What is kept of a validation that has ended."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_provision.cluster.errors import LogUnavailable
from gpu_provision.engine.actions import HarvestPod
from gpu_provision.engine.validations import Validations
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.progress import NodeState, State

_KEY = ("driver_validation", "t4-1")
_CAUSE = "cuda-validation: exit 128 (unresolvable CDI devices)"


def unmade(log: Callable[..., tuple[str, ...]]) -> Validations:
    """Return validations before the first pod has ended."""
    reading: Any = SimpleNamespace(
        context=SimpleNamespace(inventory=None, targets=(), others=()),
        observed=SimpleNamespace(passed={}),
        revalidate=False,
    )
    cluster: Any = SimpleNamespace(log=log)
    return Validations(cluster, reading)


def failed(component: str, state: State) -> NodeState:
    return NodeState(component=component, node="t4-1", state=state, reason=_CAUSE)


def ended(name: str, *, passed: bool) -> HarvestPod:
    pod = ObjectRef("v1", "Pod", "operands", name)
    return HarvestPod(_KEY, pod, name, "content.life", "main", passed, "" if passed else _CAUSE)


def harvested(printed: tuple[str, ...], *, passed: bool) -> Validations:
    """Return validations after a pod that printed these lines."""
    made = unmade(lambda _ref, _container: printed)
    made.harvest(ended("pod", passed=passed))
    return made


def test_logs_that_cannot_be_read_are_one_warning() -> None:
    """The exit status of a pod says whether it passed."""
    evidence = "no preferred addresses found"

    def log(_ref: ObjectRef, _container: str) -> tuple[str, ...]:
        raise LogUnavailable(Finding(code="GP305", what="the node does not hand out its logs", evidence=evidence))

    made = unmade(log)
    assert made.warnings == ()
    for name in ("one", "two"):
        made.harvest(ended(name, passed=True))
    assert made.passed == {_KEY: "content.life"}
    [warning] = made.warnings
    assert (warning.code, warning.severity, warning.evidence) == ("GP315", Severity.WARNING, evidence)
    assert warning.what == "the log of 2 pods cannot be read"


@pytest.mark.parametrize(
    ("printed", "said"), [(("Failed to allocate", ""), "Failed to allocate"), ((), _CAUSE), (("",), "no output")]
)
def test_a_failed_validation_is_told_by_its_last_line_or_by_its_status_if_it_never_ran(
    printed: tuple[str, ...], said: str
) -> None:
    made = harvested(printed, passed=False)
    assert made.failed == {_KEY: f"the validation failed: {said}"}
    assert made.evidence[_KEY].lines == (printed or (_CAUSE,))


def test_a_validation_that_passed_keeps_what_it_printed() -> None:
    made = harvested(("Test PASSED",), passed=True)
    assert made.passed == {_KEY: "content.life"}
    assert made.evidence[_KEY].lines == ("Test PASSED",)


@pytest.mark.parametrize("now", [State.FAILED, State.PENDING, State.READY])
def test_what_a_validation_printed_is_the_reason_while_it_has_failed(now: State) -> None:
    """Once it is to run again, as its driver was replaced, the failure is of the past."""
    made = harvested(("no device",), passed=False)
    other = ("toolkit", "t4-1")
    found = made.worded({_KEY: failed(_KEY[0], now), other: failed("toolkit", State.FAILED)})
    assert found[_KEY].reason == ("the validation failed: no device" if now is State.FAILED else _CAUSE)
    assert found[other].reason == _CAUSE
