"""Jobs: completion, failure, deadlines, and what becomes of their pods."""

from __future__ import annotations

import pytest

from tests.contract.client import Event, Object, until
from tests.contract.controllers.cluster import Cluster, condition, phase, status_of
from tests.contract.controllers.manifests import container, owner, pod_spec


def job(*command: str, policy: str = "Never", **more: object) -> Object:
    spec = pod_spec(container("main", *command), restartPolicy=policy)
    return {"template": {"metadata": {"labels": {"app": "task"}}, "spec": spec}, **more}


def await_end(cluster: Cluster, name: str = "task") -> Object:
    return cluster.await_("Job", name, lambda one: "True" in (status_of(one, "Complete"), status_of(one, "Failed")))


def test_a_job_completes_when_its_pod_succeeds(cluster: Cluster) -> None:
    cluster.create("Job", "task", spec=job("true"))
    done = await_end(cluster)
    assert status_of(done, "Complete") == "True"
    assert done["status"]["succeeded"] == 1
    assert done["status"]["startTime"] <= done["status"]["completionTime"]
    assert not {"active", "failed"} & done["status"].keys()
    (pod,) = cluster.pods()
    assert phase(pod) == "Succeeded"
    made = cluster.await_event("SuccessfulCreate", "task")
    assert (made["message"], made["source"]) == (
        f"Created pod: {pod['metadata']['name']}",
        {"component": "job-controller"},
    )
    assert cluster.await_event("Completed", "task")["message"] == "Job completed"


@pytest.mark.since(1, 31)
def test_a_complete_job_met_its_criteria_before(cluster: Cluster) -> None:
    cluster.create("Job", "task", spec=job("true"))
    for kind in ("SuccessCriteriaMet", "Complete"):
        found = condition(await_end(cluster), kind)
        assert found["reason"] == "CompletionsReached"
        assert found["message"] == "Reached expected number of succeeded pods"


def test_pods_have_the_labels_and_the_owner_of_the_job(cluster: Cluster) -> None:
    """The server fills in how often and how long, and drops what it does not know."""
    spec = job("true", ttlSecondsAfterFinished=3600)
    made = cluster.create("Job", "task", spec=spec)
    spec, uid = made["spec"], made["metadata"]["uid"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (1, 1, 6)
    assert ("ttlSecondsAfterFinished" in spec) == cluster.server.at_least(1, 21)
    await_end(cluster)
    (pod,) = cluster.pods()
    wanted, key = {"app": "task", "controller-uid": uid, "job-name": "task"}, "controller-uid"
    if cluster.server.at_least(1, 27):
        key = "batch.kubernetes.io/controller-uid"
        wanted |= {f"batch.kubernetes.io/{label}": wanted[label] for label in ("controller-uid", "job-name")}
    assert pod["metadata"]["labels"] == spec["template"]["metadata"]["labels"] == wanted
    assert spec["selector"]["matchLabels"].keys() == {key}
    assert pod["metadata"]["ownerReferences"] == [owner(made, controller=True, blockOwnerDeletion=True)]
    assert pod["metadata"]["generateName"] == "task-"


def test_several_completions_run_as_many_at_once_as_they_may(cluster: Cluster) -> None:
    """The first may have ended before the second was made."""
    since = cluster.now("Pod")
    cluster.create("Job", "task", spec=job("true", completions=3, parallelism=2))
    assert await_end(cluster)["status"]["succeeded"] == 3
    ended: set[str] = set()
    running: set[str] = set()
    counts = []

    def is_last(event: Event) -> bool:
        over = phase(event.object) in {"Succeeded", "Failed"}
        (running.discard if over else running.add)(event.name)
        counts.append(len(running))
        ended.update({event.name} if over else ())
        return len(ended) == 3

    cluster.history("Pod", since, is_last)
    assert max(counts) <= 2


def test_a_job_without_retries_fails_with_its_pod(cluster: Cluster) -> None:
    cluster.create("Job", "task", spec=job("false", backoffLimit=0))
    done = await_end(cluster)
    failed = condition(done, "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    assert failed["message"] == "Job has reached the specified backoff limit"
    assert done["status"]["failed"] == 1
    assert "completionTime" not in done["status"]
    assert [phase(pod) for pod in cluster.pods()] == ["Failed"], "the pod stays, for its log"


def test_restarts_of_a_pod_count_as_failures(cluster: Cluster) -> None:
    """With restartPolicy OnFailure the pod itself is tried again, and goes when the limit is reached.

    Its like may come back on 1.20, whose Job controller looks at a Job that it has not yet read as failed.
    """
    since = cluster.now("Pod")
    spec = job("false", policy="OnFailure", backoffLimit=1)
    spec["template"]["spec"]["terminationGracePeriodSeconds"] = 30  # its pod is still there when the end is decided
    cluster.create("Job", "task", spec=spec)
    assert condition(await_end(cluster), "Failed")["reason"] == "BackoffLimitExceeded"
    seen = cluster.history("Pod", since, lambda event: event.type == "DELETED")
    assert max(event.object["status"]["containerStatuses"][0]["restartCount"] for event in seen[-1:]) >= 1


def test_an_active_job_counts_its_pods(cluster: Cluster) -> None:
    cluster.create("Job", "task", spec=job("sleep", "infinity", parallelism=2, completions=2))
    running = cluster.await_("Job", "task", lambda one: one.get("status", {}).get("active") == 2)
    assert not running["status"].get("conditions")
    cluster.delete("Job", "task", propagationPolicy="Background")
    cluster.await_no_pods()


def test_deleting_it_without_a_policy_leaves_its_pods(cluster: Cluster) -> None:
    """So it has been with batch/v1 from the beginning; kubectl and our own code say Background."""
    cluster.create("Job", "task", spec=job("true"))
    await_end(cluster)
    cluster.delete("Job", "task")
    cluster.await_gone("Job", "task")
    (pod,) = until(cluster.pods)
    until(lambda: not cluster.get("Pod", pod["metadata"]["name"])["metadata"].get("ownerReferences"))


@pytest.mark.since(1, 21)
def test_a_finished_job_goes_when_its_time_to_live_is_over(cluster: Cluster) -> None:
    cluster.create("Job", "task", spec=job("true", ttlSecondsAfterFinished=0))
    cluster.await_gone("Job", "task")
    cluster.await_no_pods()
