"""Has the pods of others that use GPUs evicted, as their budgets allow, before drivers go."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import NotFound, Outdated
from gpu_provision.cluster.observe import POD
from gpu_provision.cluster.watching import Mirror, Scope
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Rejected, RunFailed, Unreachable
from gpu_provision.removal import telling
from gpu_provision.removal.users import users
from gpu_provision.rollout.snapshot import Pod
from gpu_provision.rollout.workloads import pod_of

_RETRY_SECONDS = 2.0  # what frees a budget happens on other nodes, too, and to objects that nobody here watches
_PATIENCE_SECONDS = 60.0


@dataclass(slots=True)
class Evicting:
    """The eviction of everything that uses GPUs on some nodes.

    Attributes:
        seconds: How long it may take.
        say: Told what is waited for.
        evicted: Uid of a pod that the API server lets go -> the pod in words.
    """

    cluster: Cluster
    nodes: frozenset[str]
    seconds: int
    say: Callable[[str], None]
    evicted: dict[str, str] = field(default_factory=dict)
    _refusals: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Go on until no pod uses a GPU any more. Raises RunFailed."""
        version, give_up = self.cluster.eviction_version(), time.monotonic() + self.seconds
        with Mirror(self.cluster, [Scope(POD)], patience=_PATIENCE_SECONDS) as mirror:
            while left := self._left(mirror):
                if time.monotonic() > give_up:
                    raise RunFailed(*(telling.not_evicted(self._pod(pod), self.seconds) for pod in left))
                for pod in left:
                    self._evict(pod, version)
                first = self._pod(left[0])
                self.say(f"waits for pods that use GPUs: {first}{f': {first.refusal}' if first.refusal else ''}")
                mirror.wait(_RETRY_SECONDS)

    def _left(self, mirror: Mirror) -> list[Manifest]:
        found: Mapping[str, tuple[Manifest, ...]] = users(mirror.of(POD).values(), self.nodes)
        return [pod for pods in found.values() for pod in pods]

    def _pod(self, pod: Manifest) -> Pod:
        return pod_of(pod, refusals=self._refusals)

    def _evict(self, pod: Manifest, version: str) -> None:
        uid = pod["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp") or uid in self.evicted:
            return
        try:
            self.cluster.evict(ref_of(pod), uid, api_version=version)
        except (NotFound, Outdated):
            return  # it is gone, and the watch will say so
        except (Rejected, Unreachable) as error:
            self._refusals[uid] = error.findings[0].evidence or error.findings[0].what
        else:
            self._refusals.pop(uid, None)
            self.evicted[uid] = str(self._pod(pod))
