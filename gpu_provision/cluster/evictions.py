"""Takes the pods off a node by the Eviction API, which keeps disruption budgets, and waits until they are gone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import NotFound, Outdated
from gpu_provision.cluster.watching import Mirror, Scope
from gpu_provision.model.cluster import Kind, Manifest, ref_of
from gpu_provision.model.findings import Rejected, RunFailed, Unreachable
from gpu_provision.model.inventory import Drain
from gpu_provision.planning.drain import Leaving, in_words, leaving, not_drained, would_lose

POD = Kind("v1", "Pod")
_RETRY_SECONDS = 2.0  # what frees a budget happens on other nodes, which nobody watches
_PATIENCE_SECONDS = 60.0

Say = Callable[[str], None]


def pods_of(node: str) -> Scope:
    """Return the pods that are bound to a node."""
    return Scope(POD, field_selector=f"spec.nodeName={node}")


def look(cluster: Cluster, node: str, terms: Drain) -> Leaving:
    """Return what a drain of a node would do."""
    return leaving(cluster.list(POD, field_selector=pods_of(node).field_selector).items, terms)


def drain(cluster: Cluster, node: str, terms: Drain, *, say: Say, stopped: Callable[[], bool]) -> tuple[str, ...]:
    """Empty a node that is cordoned; return in words which pods left it.

    Args:
        say: Told what is waited for, whenever something has happened.
        stopped: Asked again and again; True ends it as the deadline does.

    Raises:
        RunFailed: Pods may not be taken away under these terms, or did not leave in time.
        ProvisionError: The API server refuses us, or is silent for long.
    """
    draining = _Draining(cluster, node, terms, cluster.eviction_version())
    with Mirror(cluster, [pods_of(node)], patience=_PATIENCE_SECONDS) as mirror:
        while (awaited := draining.step(tuple(mirror.of(POD).values()), stopped=stopped())) is not None:
            say(awaited)
            mirror.wait(_RETRY_SECONDS)
    return tuple(draining.sent.values())


@dataclass(slots=True)
class _Draining:
    """One drain.

    Attributes:
        sent: UID of a pod that the API server lets go -> the pod in words.
        refusals: UID of a pod that it does not -> why.
    """

    cluster: Cluster
    node: str
    terms: Drain
    version: str
    sent: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    _asked: float = -math.inf
    _began: float = field(default_factory=time.monotonic)

    def step(self, pods: tuple[Manifest, ...], *, stopped: bool) -> str | None:
        """Evict what can be evicted; return what is waited for, None at the end. Raises RunFailed."""
        left = leaving(pods, self.terms)
        if finding := would_lose(self.node, left):
            raise RunFailed(finding)
        if not left.evict and not left.ending:
            return None
        passed, limit = time.monotonic() - self._began, self.terms.timeout_seconds
        if stopped or (limit and passed > limit):
            raise RunFailed(not_drained(self.node, round(passed), left, self.refusals))
        self._evict(left)
        return self._waits_for(left)

    def _evict(self, left: Leaving) -> None:
        """Ask for pods that have not been asked for, and now and then for those that were refused."""
        again = time.monotonic() - self._asked >= _RETRY_SECONDS
        self._asked = time.monotonic() if again else self._asked
        for pod in left.evict:
            uid = pod["metadata"]["uid"]
            if uid not in self.sent and (again or uid not in self.refusals):
                self._ask(pod, uid)

    def _ask(self, pod: Manifest, uid: str) -> None:
        try:
            self.cluster.evict(ref_of(pod), uid, api_version=self.version)
        except (NotFound, Outdated):
            return  # it is gone, and the watch will say so
        except (Rejected, Unreachable) as error:
            self.refusals[uid] = error.findings[0].evidence or error.findings[0].what
        else:
            self.refusals.pop(uid, None)
            self.sent[uid] = in_words(pod)

    def _waits_for(self, left: Leaving) -> str:
        pods = (*left.evict, *left.ending)
        first = next((pod for pod in pods if pod["metadata"]["uid"] in self.refusals), pods[0])
        why = self.refusals.get(first["metadata"]["uid"], "")
        more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        return f"draining: waits for {in_words(first)}{f': {why}' if why else ''}{more}"
