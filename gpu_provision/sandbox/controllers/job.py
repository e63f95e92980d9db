"""The Job controller: runs pods until enough have succeeded or too many have failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import job_plan as plan
from gpu_provision.sandbox.controllers import objects, timestamps
from gpu_provision.sandbox.controllers.claims import enqueue_owners
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller, all_of
from gpu_provision.sandbox.controllers.events import Note
from gpu_provision.sandbox.controllers.resources import JOBS, PODS
from gpu_provision.sandbox.informer import Key

_BACKOFF_SECONDS = 10.0


@dataclass(slots=True)
class _Gone:
    """Pods that no longer exist but count."""

    succeeded: int
    failed: int


class Jobs(Controller[Key]):
    """Keeps every Job's pods and status, and deletes Jobs whose time to live is over."""

    name = "job"
    watches = (JOBS, PODS)

    def __init__(self, cluster: Cluster, *, backoff_seconds: float = _BACKOFF_SECONDS) -> None:
        """Follow Jobs and their pods; the first failed pod is replaced after ``backoff_seconds``."""
        super().__init__(cluster)
        self._backoff_seconds = backoff_seconds
        self._gone: dict[str, _Gone] = {}
        self._dismissed: set[str] = set()
        self._jobs, self._pods = cluster.informer(JOBS), cluster.informer(PODS)
        enqueue_owners(cluster, JOBS, PODS, self.queue.add)
        self._jobs.on_change(self._job_changed)
        self._pods.on_change(self._pod_changed)

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self.queue.add(objects.key_of(new))
        elif old is not None:
            self._gone.pop(objects.uid(old), None)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None or old is None:
            return
        gone = self._gone.get(objects.controller_uid(old))
        if objects.uid(old) in self._dismissed:
            self._dismissed.discard(objects.uid(old))
        elif gone is not None and objects.phase(old) == "Succeeded":
            gone.succeeded += 1
        elif gone is not None:
            gone.failed += 1

    async def sync(self, key: Key) -> None:
        """Take the Job's next step, then write the status."""
        job = self._jobs.objects.get(key)
        if job is None or objects.is_deleting(job):
            return
        moment = timestamps.now()
        if plan.is_finished(job):
            await self._expire(job, moment)
            return
        counted = self._tally(job)
        end = plan.end_of(job, counted, moment)
        try:
            if end is not None:
                await all_of([self._dismiss(job, pod) for pod in counted.active])
            elif objects.status(job).get("startTime") or job["spec"].get("suspend"):
                await self._provide(job, counted, moment)
        finally:
            await self._write(job, end, moment)

    def _tally(self, job: Object) -> plan.Tally:
        pods = [
            pod for pod in self._pods.by("controller uid", objects.uid(job)) if objects.uid(pod) not in self._dismissed
        ]
        gone = self._gone.get(objects.uid(job))
        if gone is None:
            gone = self._gone[objects.uid(job)] = _never_seen(job, pods)
        return plan.tally(pods, gone_succeeded=gone.succeeded, gone_failed=gone.failed)

    async def _provide(self, job: Object, counted: plan.Tally, moment: datetime) -> None:
        need = plan.need_of(job, counted, moment, backoff_seconds=self._backoff_seconds)
        await all_of([self._dismiss(job, pod) for pod in need.delete])
        if need.create and need.after > 0:
            self.queue.add_after(objects.key_of(job), need.after)
            return
        await all_of([self._create(job) for _ in range(need.create)])

    async def _create(self, job: Object) -> None:
        body = plan.pod_for(job, objects.controller_ref(JOBS, job))
        try:
            pod = await self.cluster.create(PODS, body, objects.namespace(job))
        except Exception as error:
            self.event(JOBS, job, Note("FailedCreate", f"Error creating: {error}", warning=True))
            raise
        self.event(JOBS, job, Note("SuccessfulCreate", f"Created pod: {objects.name(pod)}"))

    async def _dismiss(self, job: Object, pod: Object) -> None:
        self._dismissed.add(objects.uid(pod))
        try:
            await self.cluster.delete(PODS, pod)
        except BaseException:
            self._dismissed.discard(objects.uid(pod))
            raise
        self.event(JOBS, job, Note("SuccessfulDelete", f"Deleted pod: {objects.name(pod)}"))

    async def _write(self, job: Object, end: plan.End | None, moment: datetime) -> None:
        wanted = plan.status(job, self._tally(job), end, moment)
        await self.cluster.write_status(JOBS, job, wanted)
        written = self._jobs.objects.get(objects.key_of(job))
        if end is not None and written is not None and plan.is_finished(written):
            note = (
                Note("Completed", "Job completed")
                if end.kind == "Complete"
                else Note(end.reason, end.message, warning=True)
            )
            self.event(JOBS, job, note)
        pause = plan.deadline(written or job, moment)
        if end is None and pause is not None:
            self.queue.add_after(objects.key_of(job), pause)

    async def _expire(self, job: Object, moment: datetime) -> None:
        lifetime = job["spec"].get("ttlSecondsAfterFinished")
        if lifetime is None:
            return
        ended = objects.condition(job, "Complete") or objects.condition(job, "Failed") or {}
        left = float(lifetime) - timestamps.seconds_since(ended.get("lastTransitionTime"), moment)
        if left > 0:
            self.queue.add_after(objects.key_of(job), left)
            return
        pods = self._pods.by("controller uid", objects.uid(job))
        await all_of([self.cluster.delete(PODS, pod) for pod in pods])
        await self.cluster.delete(JOBS, job)


def _never_seen(job: Object, pods: list[Object]) -> _Gone:
    """Return what the status counts beyond the pods that are there, after a restart."""
    counted = plan.tally(pods, gone_succeeded=0, gone_failed=0)
    status = objects.status(job)
    return _Gone(
        max(int(status.get("succeeded") or 0) - counted.succeeded, 0),
        max(int(status.get("failed") or 0) - counted.failed, 0),
    )
