"""What evicting the users of GPUs will and may mean."""

from __future__ import annotations

from typing import Any

from gpu_provision.destroy.findings import eviction_warnings
from gpu_provision.model import codes

LABELS = {"app": "train"}


def pod(name: str, *, owner: str = "Job", labels: dict[str, str] | None = None, going: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": "ml", "name": name, "uid": name, "labels": labels or {}}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "train", "controller": True}]
    if going:
        metadata["deletionTimestamp"] = "2026-11-22T12:00:00Z"
    return {"metadata": metadata, "spec": {"containers": []}}


def budget(allowed: int, *, namespace: str = "ml") -> dict[str, Any]:
    spec = {"selector": {"matchLabels": LABELS}}
    return {
        "metadata": {"namespace": namespace, "name": "train"},
        "spec": spec,
        "status": {"disruptionsAllowed": allowed},
    }


def test_pods_that_nobody_starts_again_are_named() -> None:
    """Those that are on their way out already are not."""
    (lost,) = eviction_warnings([pod("a"), pod("b", owner=""), pod("c", owner="", going=True)], [])
    assert (lost.code, lost.where) == (codes.UNMANAGED_PODS, "Pod ml/b")
    assert "a pod that has no controller, which would start it again" in lost.what


def test_a_budget_that_lets_nobody_go_will_hold_it_up() -> None:
    """One that lets some go may, and one that lets all go, or is of others, does not."""
    pods = [pod(name, labels=LABELS) for name in "ab"]
    (held,) = eviction_warnings(pods, [budget(0)])
    assert (held.code, held.where) == (codes.BUDGET_HOLDS, "PodDisruptionBudget ml/train")
    assert (held.what, held.consequence[:20]) == ("the budget lets no pod go right now", "the removal will wai")
    (slowed,) = eviction_warnings(pods, [budget(1)])
    assert (slowed.what, slowed.consequence[:20]) == (
        "the budget lets 1 of 2 pods go right now",
        "the removal may wait",
    )
    assert not list(eviction_warnings(pods, [budget(2), budget(0, namespace="web")]))
    assert not list(eviction_warnings([pod("a")], [budget(0)]))
