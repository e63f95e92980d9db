"""Jobs on a cluster that runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_provision.sandbox.controllers import job as plan
from gpu_provision.sandbox.controllers.resources import JOBS, PODS


def test_a_deleted_success_still_counts(lab: Any, template: Any) -> None:
    """A pod that succeeded and was deleted is not run again."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        pods = template({}, restartPolicy="Never")
        await lab.create(JOBS, "Job", "sums", spec={"template": pods, "completions": 2, "parallelism": 1})
        await lab.status_of(JOBS, "sums", ready=1)
        for _ in range(2):

            async def one_runs() -> Any:
                return await lab.running()

            (pod,) = await lab.until(one_runs)
            name = pod["metadata"]["name"]
            await lab.api.patch(PODS, name, {"status": {"phase": "Succeeded"}}, "default", "status")
            await lab.api.delete(PODS, name, "default")
        await lab.condition(JOBS, "sums", "Complete")
        await lab.status_of(JOBS, "sums", succeeded=2, failed=0)

    lab(story)


NOW = datetime(2026, 1, 1, 12, 1, 0, tzinfo=UTC)


def job(*, start: str = "2026-01-01T12:00:00Z", restart: str = "Never", **spec: Any) -> dict[str, Any]:
    """Return a Job that started a minute ago."""
    spec = {"completions": 1, "parallelism": 1, "template": {"spec": {"restartPolicy": restart}}, **spec}
    return {"metadata": {"name": "j"}, "spec": spec, "status": {"startTime": start}}


def pods(*phases: str, restarts: int = 0) -> list[dict[str, Any]]:
    """Return pods in these phases; ``Leaving`` runs and is being deleted."""
    result = []
    for number, phase in enumerate(phases):
        metadata = {"name": f"p{number}", "uid": f"p{number}", "creationTimestamp": "2026-01-01T12:00:50Z"}
        if phase == "Leaving":
            metadata["deletionTimestamp"] = "2026-01-01T12:00:55Z"
        statuses = [{"restartCount": restarts}]
        status = {"phase": "Running" if phase == "Leaving" else phase, "containerStatuses": statuses}
        result.append({"metadata": metadata, "spec": {}, "status": status})
    return result


def tally(*phases: str, restarts: int = 0) -> plan.Tally:
    """Count such pods."""
    return plan.tally(pods(*phases, restarts=restarts), gone_succeeded=0, gone_failed=0)


def test_pods_are_counted_with_those_that_are_gone() -> None:
    """One that is deleted before its end has failed."""
    counted = plan.tally(pods("Running", "Pending", "Succeeded", "Failed", "Leaving"), gone_succeeded=2, gone_failed=1)
    assert (len(counted.active), counted.terminating, counted.succeeded, counted.failed) == (2, 1, 3, 3)


@pytest.mark.parametrize(
    ("one", "counted", "reason"),
    [
        (job(), tally("Running"), None),
        (job(), tally("Succeeded"), "CompletionsReached"),
        (job(completions=2), tally("Succeeded"), None),
        (job(completions=None, parallelism=2), tally("Succeeded", "Running"), None),
        (job(completions=None, parallelism=2), tally("Succeeded", "Failed"), "CompletionsReached"),
        (job(), tally(*["Failed"] * 6), None),
        (job(), tally(*["Failed"] * 7), "BackoffLimitExceeded"),
        (job(backoffLimit=0), tally("Failed"), "BackoffLimitExceeded"),
        (job(backoffLimit=2, restart="OnFailure"), tally("Running", restarts=2), "BackoffLimitExceeded"),
        (job(backoffLimit=2, restart="OnFailure"), tally("Running", restarts=1), None),
        (job(activeDeadlineSeconds=60), tally("Running"), "DeadlineExceeded"),
        (job(activeDeadlineSeconds=61), tally("Running"), None),
    ],
)
def test_how_a_job_ends(one: dict[str, Any], counted: plan.Tally, reason: str | None) -> None:
    """By completions, by failures, by its deadline; or not yet."""
    end = plan.end_of(one, counted, NOW)
    assert (end.reason if end else None) == reason


@pytest.mark.parametrize(
    ("one", "counted", "create", "delete", "after"),
    [
        (job(completions=5, parallelism=2), tally(), 2, 0, 0),
        (job(completions=5, parallelism=2), tally("Running"), 1, 0, 0),
        (job(completions=3, parallelism=2), tally("Succeeded", "Succeeded"), 1, 0, 0),
        (job(completions=None, parallelism=3), tally("Succeeded", "Running"), 0, 0, 0),
        (job(completions=5, parallelism=1), tally("Running", "Running"), 0, 1, 0),
        (job(suspend=True), tally("Running"), 0, 1, 0),
        (job(), tally("Failed"), 1, 0, 0),
        (job(), tally("Failed", "Failed"), 1, 0, 10),
        (job(), tally("Failed", "Failed", "Failed"), 1, 0, 30),
    ],
)
def test_what_a_job_needs(one: dict[str, Any], counted: plan.Tally, create: int, delete: int, after: float) -> None:
    """Up to its parallelism; after failures later each time (ten seconds have passed here)."""
    need = plan.need_of(one, counted, NOW, backoff_seconds=10)
    assert (need.create, len(need.delete), need.after) == (create, delete, after)


def test_the_terminal_condition_waits_for_the_last_pod() -> None:
    """First it is announced, then, with no pod left, it is final."""
    end = plan.End("Complete", "CompletionsReached", "done")
    busy = plan.status(job(), tally("Succeeded", "Running"), end, NOW)
    assert [one["type"] for one in busy["conditions"]] == ["SuccessCriteriaMet"]
    assert busy["completionTime"] is None
    final = plan.status(job(), tally("Succeeded"), end, NOW)
    assert [one["type"] for one in final["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert final["completionTime"] == "2026-01-01T12:01:00Z"
