"""What is kept of a vectorAdd that has ended, and what becomes of its pod."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_provision.model.cluster import Manifest
from gpu_provision.planning.validation import parse_verdict
from gpu_provision.reconcile.steps import Validations
from tests.planning.builders import VALIDATED, Stack, shown, validation_pod

DRIVER, PLUGIN = ("driver_validation", "t4-1"), ("device_plugin_validation", "t4-1")


class Cluster:
    """Takes deletions of many pods at once."""

    def __init__(self) -> None:
        """Nothing is deleted yet."""
        self.deleted: list[dict[str, str]] = []

    def delete_all(self, _kind: object, namespace: str, **selectors: str) -> None:
        """Take a deletion."""
        self.deleted.append({"namespace": namespace, **selectors})


def validations(stack: Stack, cluster: Cluster | None = None) -> Validations:
    """Return those of a run that begins now."""
    reading: Any = SimpleNamespace(context=stack.context, observed=stack.observed, revalidate=False)
    taker: Any = cluster or Cluster()
    return Validations(taker, reading)


def pod_of(stack: Stack) -> Manifest:
    return next(item for item in stack.validations() if "t4-1" in item["metadata"]["name"])


def test_what_ended_in_this_run_is_evidence_of_it() -> None:
    """What had ended before is none, and both kinds of pods count."""
    stack = Stack()
    made = validations(stack)
    made.take(stack.situation)
    assert made.evidence == {}
    stack.put(shown(stack.pod("validator", "t4-1"), began="2026-11-21T08:00:00Z", said="Test PASSED\nDone"))
    stack.put(validation_pod(pod_of(stack), "Failed"))
    made.take(stack.situation)
    assert {key: (each.passed, each.lines) for key, each in made.evidence.items()} == {
        DRIVER: (True, ("Test PASSED", "Done")),
        PLUGIN: (False, ("no CUDA-capable device",)),
    }
    assert PLUGIN not in made.passed or parse_verdict(made.passed[PLUGIN]) is not None


@pytest.mark.parametrize("is_old", [False, True])
def test_what_passed_is_recorded_before_its_pod_goes(*, is_old: bool) -> None:
    """Also what a run has left that was killed between the two."""
    stack = Stack()
    stack.passed = {}
    made = validations(stack)
    if not is_old:
        made.take(stack.situation)
    stack.put(validation_pod(pod_of(stack), "Succeeded"))
    made.take(stack.situation)
    verdict = parse_verdict(made.passed[PLUGIN])
    assert verdict
    assert verdict.began == VALIDATED
    assert DRIVER not in made.passed, "its pod stays"


def test_all_pods_that_succeeded_go_in_one_request() -> None:
    stack, cluster = Stack(), Cluster()
    made = validations(stack, cluster)
    assert not made.remove_succeeded(stack.situation)
    for pod in stack.validations():
        stack.put(validation_pod(pod, "Succeeded"))
    assert made.remove_succeeded(stack.situation)
    (deleted,) = cluster.deleted  # without those of an earlier version, which tests/scenarios/test_upgrades.py has
    assert deleted["field_selector"] == "status.phase=Succeeded"
    assert deleted["label_selector"] == (
        "gpu-provision.io/stack=sandbox,gpu-provision.io/component in (driver_validation,device_plugin_validation)"
    )


def test_what_is_to_be_repeated_is_neither_evidence_nor_recorded() -> None:
    stack = Stack()
    stack.passed = {}
    pod = validation_pod(pod_of(stack), "Succeeded")
    stack.put(pod)
    made = validations(stack)
    seen = stack.situation
    object.__setattr__(seen.observed, "void", frozenset({pod["metadata"]["uid"]}))
    made.take(seen)
    assert (made.passed, made.evidence) == ({}, {})
