"""What is kept of a validation that has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_provision.engine.actions import HarvestPod
from gpu_provision.engine.validations import Validations
from gpu_provision.model.cluster import ObjectRef

_KEY = ("driver_validation", "t4-1")
_CAUSE = "cuda-validation: exit 128 (unresolvable CDI devices)"


def harvested(printed: tuple[str, ...], *, passed: bool) -> Validations:
    """Return validations after a pod that printed these lines."""
    reading: Any = SimpleNamespace(
        context=SimpleNamespace(inventory=None, targets=(), others=()),
        observed=SimpleNamespace(passed={}),
        revalidate=False,
    )
    cluster: Any = SimpleNamespace(log=lambda _ref, _container: printed)
    made = Validations(cluster, reading)
    pod = ObjectRef("v1", "Pod", "operands", "pod")
    made.harvest(HarvestPod(_KEY, pod, "uid", "digest", "main", passed, "" if passed else _CAUSE))
    return made


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
    assert made.passed == {_KEY: "digest"}
    assert made.evidence[_KEY].lines == ("Test PASSED",)
