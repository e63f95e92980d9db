"""Deployments and ReplicaSets on a cluster that runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_provision.sandbox.controllers import deployment as plan
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.resources import DEPLOYMENTS, REPLICA_SETS

LABELS = {"app": "web"}


def spec(template: Any, replicas: int = 3, **more: Any) -> Any:
    """Return a Deployment's spec."""
    return {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template, **more}


async def deployed(lab: Any, template: Any, replicas: int = 3, **more: Any) -> Any:
    """Create a Deployment on three nodes and wait until it is complete."""
    for name in ("a", "b", "c"):
        await lab.node(name)
    await lab.create(DEPLOYMENTS, "Deployment", "web", spec=spec(template(LABELS), replicas, **more))
    return await lab.status_of(DEPLOYMENTS, "web", availableReplicas=replicas, updatedReplicas=replicas)


async def revisions(lab: Any) -> Any:
    """Return revision -> replicas of all ReplicaSets."""
    found, _ = await lab.api.list(REPLICA_SETS, "default")
    key = "deployment.kubernetes.io/revision"
    return {int(one["metadata"]["annotations"][key]): one["spec"]["replicas"] for one in found}


def test_a_rolling_update_keeps_enough_pods_available(lab: Any, template: Any) -> None:
    """A broken image stops at maxUnavailable; a good one finishes; going back takes the old ReplicaSet."""

    async def story(lab: Any) -> None:
        await deployed(lab, template, replicas=4)
        lab.kubelet.broken_images.add("bad")
        change = {"spec": {"template": template(LABELS, image="bad")}}
        await lab.api.patch(DEPLOYMENTS, "web", change, "default")
        status = await lab.status_of(DEPLOYMENTS, "web", updatedReplicas=2, availableReplicas=3, replicas=5)
        assert status["unavailableReplicas"] == 2
        change = {"spec": {"template": template(LABELS, image="two")}}
        await lab.api.patch(DEPLOYMENTS, "web", change, "default")
        await lab.status_of(DEPLOYMENTS, "web", updatedReplicas=4, availableReplicas=4, replicas=4)
        assert await revisions(lab) == {1: 0, 2: 0, 3: 4}
        await lab.api.patch(DEPLOYMENTS, "web", {"spec": {"template": template(LABELS)}}, "default")
        await lab.status_of(
            DEPLOYMENTS, "web", observedGeneration=4, updatedReplicas=4, availableReplicas=4, replicas=4
        )
        assert await revisions(lab) == {2: 0, 3: 0, 4: 4}

    lab(story)


def test_old_replica_sets_beyond_the_limit_are_deleted(lab: Any, template: Any) -> None:
    """Only revisionHistoryLimit old ones stay."""

    async def story(lab: Any) -> None:
        await deployed(lab, template, revisionHistoryLimit=1)
        for generation, image in enumerate(("two", "three"), start=2):
            change = {"spec": {"template": template(LABELS, image=image)}}
            await lab.api.patch(DEPLOYMENTS, "web", change, "default")
            await lab.status_of(
                DEPLOYMENTS, "web", observedGeneration=generation, updatedReplicas=3, replicas=3, availableReplicas=3
            )

        async def pruned() -> Any:
            return await revisions(lab) == {2: 0, 3: 3}

        await lab.until(pruned)

    lab(story)


NOW = datetime(2026, 1, 1, tzinfo=UTC)
_LONG_AGO = "2025-12-31T00:00:00Z"


def deployment(replicas: int = 4, surge: Any = "25%", unavailable: Any = "25%", **spec: Any) -> dict[str, Any]:
    """Return a Deployment."""
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    spec = {"replicas": replicas, "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}, **spec}
    return {"metadata": {"name": "d"}, "spec": spec}


def replica_set(name: str, replicas: int, available: int) -> dict[str, Any]:
    """Return a ReplicaSet."""
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas},
        "status": {"replicas": replicas, "availableReplicas": available},
    }


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "limits"),
    [
        (4, "25%", "25%", (1, 1)),
        (3, "25%", "25%", (1, 0)),
        (1, "25%", "25%", (1, 0)),
        (10, 2, 0, (2, 0)),
        (3, 0, "10%", (0, 1)),
    ],
)
def test_percentages_round_up_for_surge_and_down_for_unavailable(
    replicas: int, surge: Any, unavailable: Any, limits: tuple[int, int]
) -> None:
    """If both end at zero, one pod may be missing."""
    assert plan.limits(deployment(replicas, surge, unavailable)) == limits


@pytest.mark.parametrize(
    ("new", "old", "count"),
    [(None, [], 4), (None, [4], 1), (1, [4], 1), (1, [3], 2), (4, [], 4), (6, [], 4)],
)
def test_the_new_replica_set_grows_into_the_surge(new: int | None, old: list[int], count: int) -> None:
    """Never beyond what is wanted."""
    present = replica_set("new", new, 0) if new is not None else None
    others = [replica_set(f"old{number}", each, each) for number, each in enumerate(old)]
    assert plan.new_replicas(deployment(), present, others) == count


@pytest.mark.parametrize(
    ("new", "old", "counts"),
    [
        ((1, 0), [(4, 4)], [3]),
        ((1, 1), [(4, 4)], [2]),
        ((1, 0), [(3, 3)], []),
        ((2, 0), [(3, 1)], []),
        ((1, 0), [(4, 1)], [3]),
        ((2, 2), [(1, 0), (2, 2)], [0, 1]),
        ((4, 4), [(1, 1)], [0]),
    ],
)
def test_old_replica_sets_shrink_as_far_as_availability_allows(
    new: tuple[int, int], old: list[tuple[int, int]], counts: list[int]
) -> None:
    """Pods that are not available go first."""
    others = [replica_set(f"old{number}", *each) for number, each in enumerate(old)]
    changes = plan.shrink(deployment(), replica_set("new", *new), others)
    assert [count for _, count in changes] == counts


def test_templates_are_compared_without_the_hash_label() -> None:
    """The ReplicaSet's template carries it, the Deployment's does not."""
    own = {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}
    other = {"metadata": {"labels": {"a": "b", plan.HASH_LABEL: "h"}, "annotations": {}}, "spec": {"x": 1}}
    assert plan.same_template(own, other)
    assert not plan.same_template(own, {**other, "spec": {"x": 2}})


def test_the_deadline_stands_still_while_the_rollout_moves() -> None:
    """It counts from the last progress and not at all once complete."""
    written = {
        "type": "Progressing",
        "status": "True",
        "reason": "ReplicaSetUpdated",
        "lastUpdateTime": "2025-12-31T23:59:00Z",
    }
    one = deployment(progressDeadlineSeconds=100) | {"status": {"conditions": [written]}}
    counted = plan.counts(replica_set("new", 4, 2), [])
    assert plan.remaining_seconds(one, counted, NOW) == 40
    complete = {"replicas": 4, "updatedReplicas": 4, "availableReplicas": 4}
    assert plan.remaining_seconds(one, complete, NOW) is None


def test_a_deadline_that_has_passed_is_told_until_pods_come() -> None:
    """Also by the looks that find nothing new."""
    counted = plan.counts(new := replica_set("new", 4, 2), [])
    told = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "lastUpdateTime": _LONG_AGO}
    one = deployment(progressDeadlineSeconds=100) | {"status": {**counted, "conditions": [told]}}
    passed = plan.conditions(one, new, counted, NOW)
    assert objects.condition({"status": {"conditions": passed}}, "Progressing")["reason"] == "ProgressDeadlineExceeded"
    later = one | {"status": {**counted, "conditions": passed}}
    assert plan.conditions(later, new, counted, datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)) == passed


def test_a_condition_keeps_its_transition_time_until_its_status_changes() -> None:
    """And an equal condition is not written at all."""
    first = objects.with_condition([], objects.Condition("A", "True", "r", "m"), NOW)
    later = datetime(2026, 1, 2, tzinfo=UTC)
    assert objects.with_condition(first, objects.Condition("A", "True", "r", "m"), later) is first
    second = objects.with_condition(first, objects.Condition("A", "True", "other", "m"), later)
    assert second[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    third = objects.with_condition(first, objects.Condition("A", "False", "r", "m"), later)
    assert third[0]["lastTransitionTime"] == "2026-01-02T00:00:00Z"


def test_hashes_depend_on_the_value_only() -> None:
    """Not on the order of keys; collisions give another one."""
    assert objects.stable_hash({"a": 1, "b": 2}) == objects.stable_hash({"b": 2, "a": 1})
    assert len({objects.stable_hash({"a": 1}, number) for number in range(3)}) == 3
