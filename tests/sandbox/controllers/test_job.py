"""Jobs on a cluster that runs."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.controllers.resources import JOBS, PODS


def spec(template: Any, outcome: Any, **more: Any) -> Any:
    """Return a Job's spec whose pods end as ``outcome`` says."""
    return {"template": template({}, outcome=outcome, restartPolicy="Never"), **more}


def test_a_job_completes_after_enough_successes(lab: Any, template: Any) -> None:
    """Three completions, two at a time."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        body = spec(template, "Succeeded", completions=3, parallelism=2)
        await lab.create(JOBS, "Job", "sums", spec=body)
        complete = await lab.condition(JOBS, "sums", "Complete")
        assert complete["reason"] == "CompletionsReached"
        job = await lab.api.get(JOBS, "sums", "default")
        assert job["status"]["succeeded"] == 3
        assert job["status"]["startTime"] <= job["status"]["completionTime"]
        assert job["status"].get("active", 0) == 0
        pods = await lab.pods("batch.kubernetes.io/job-name=sums,job-name=sums")
        assert len(pods) == 3
        uids = {pod["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] for pod in pods}
        assert uids == {job["metadata"]["uid"]}

    lab(story)


def test_a_job_fails_at_its_backoff_limit(lab: Any, template: Any) -> None:
    """With backoffLimit 0 the first failure is the last."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(JOBS, "Job", "sums", spec=spec(template, "Failed", backoffLimit=0))
        failed = await lab.condition(JOBS, "sums", "Failed")
        assert failed["reason"] == "BackoffLimitExceeded"
        status = await lab.status_of(JOBS, "sums", failed=1)
        assert "completionTime" not in status

    lab(story)


def test_a_job_ends_at_its_deadline(lab: Any, template: Any) -> None:
    """Pods that still run are deleted."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(JOBS, "Job", "sums", spec=spec(template, "Ready"))
        await lab.status_of(JOBS, "sums", active=1, ready=1)
        await lab.api.patch(JOBS, "sums", {"spec": {"activeDeadlineSeconds": 1}}, "default")
        failed = await lab.condition(JOBS, "sums", "Failed")
        assert failed["reason"] == "DeadlineExceeded"
        assert not await lab.running()

    lab(story)


def test_a_finished_job_goes_when_its_time_to_live_is_over(lab: Any, template: Any) -> None:
    """The Job and its pods are deleted."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(JOBS, "Job", "sums", spec=spec(template, "Succeeded", ttlSecondsAfterFinished=0))
        await lab.gone(JOBS, "sums")

        async def empty() -> Any:
            return not await lab.pods()

        await lab.until(empty)

    lab(story)


def test_a_deleted_success_still_counts(lab: Any, template: Any) -> None:
    """A pod that succeeded and was deleted is not run again."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(JOBS, "Job", "sums", spec=spec(template, "Ready", completions=2, parallelism=1))
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


def test_a_suspended_job_has_no_pods_until_it_is_resumed(lab: Any, template: Any) -> None:
    """Suspension is a condition and can be lifted."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(JOBS, "Job", "sums", spec=spec(template, "Succeeded", suspend=True))
        await lab.condition(JOBS, "sums", "Suspended")
        assert not await lab.pods()
        await lab.api.patch(JOBS, "sums", {"spec": {"suspend": False}}, "default")
        await lab.condition(JOBS, "sums", "Complete")
        await lab.condition(JOBS, "sums", "Suspended", "False")

    lab(story)
