"""Jobs on a cluster that runs."""

from __future__ import annotations

from typing import Any

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
