"""Cordon nodes, and evict pods by the Eviction API, which keeps disruption budgets.

An annotation says who cordoned a node, what for and since when.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpu_provision.components.labels import CORDONED
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError, NotFoundError
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.observe import POD
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, InvalidError, RunFailedError, UnreachableError
from gpu_provision.model.hosts import Drain
from gpu_provision.planning.drain_rules import (
    DrainPlan,
    data_loss_finding,
    describe_pod,
    not_drained_finding,
    plan_drain,
)

_TRIES = 10  # kubelets and controllers write to nodes, too
Change = dict[str, Any]


def is_cordoned_for(node: NodeFacts, purpose: str) -> bool:
    """Whether we cordoned a node for a purpose and have not taken that back."""
    return _has_cordon_annotation(node.annotations, purpose)


def cordon(cluster: KubeClient, name: str, purpose: str) -> bool:
    """Keep new pods off a node, and note that; False if it was cordoned by another tool, which stays as it is."""

    def change(node: Manifest) -> Change | None:
        if node["spec"].get("unschedulable"):
            return None
        mark = f"{purpose} since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return {"annotations": {CORDONED: mark}, "unschedulable": True}

    node = _change(cluster, name, change)
    return _has_cordon_annotation(node["metadata"].get("annotations"), purpose)


def uncordon(cluster: KubeClient, name: str, purpose: str) -> None:
    """Take our own cordon back, and no other."""

    def change(node: Manifest) -> Change | None:
        if not _has_cordon_annotation(node["metadata"].get("annotations"), purpose):
            return None
        return {"annotations": {CORDONED: None}, "unschedulable": None}

    _change(cluster, name, change)


def _has_cordon_annotation(annotations: Mapping[str, str] | None, purpose: str) -> bool:
    return str((annotations or {}).get(CORDONED, "")).startswith(f"{purpose} since ")


def _change(cluster: KubeClient, name: str, change: Callable[[Manifest], Change | None]) -> Manifest:
    """Write what a node needs, on exactly the version that was looked at. Raises NotFoundError, ConflictError."""
    ref, left = ObjectRef("v1", "Node", "", name), _TRIES
    while True:
        node = cluster.read(ref)
        if (wanted := change(node)) is None:
            return node
        metadata = {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": wanted["annotations"]}
        try:
            return cluster.merge_patch(ref, {"metadata": metadata, "spec": {"unschedulable": wanted["unschedulable"]}})
        except ConflictError:
            left -= 1
            if left < 0:
                raise


_RETRY_SECONDS = 2.0  # what frees a budget happens on other nodes, which are not watched
OnProgress = Callable[[str], None]


def pods_of(node: str) -> Scope:
    """Return the pods that are bound to a node."""
    return Scope(POD, field_selector=f"spec.nodeName={node}")


def preview_drain(cluster: KubeClient, node: str, terms: Drain) -> DrainPlan:
    """Return what a drain of a node would do."""
    return plan_drain(cluster.list(POD, field_selector=pods_of(node).field_selector).items, terms)


def drain(
    cluster: KubeClient, node: str, terms: Drain, *, say: OnProgress, stopped: Callable[[], bool]
) -> tuple[str, ...]:
    """Empty a node that is cordoned; return in words which pods left it. ``stopped`` is asked again and again.

    Raises RunFailedError if pods may not be taken away under these terms, or did not leave in time; UnreachableError.
    """

    def select(pods: Iterable[Manifest]) -> DrainPlan:
        left = plan_drain(pods, terms)
        if finding := data_loss_finding(node, left):
            raise RunFailedError(finding)
        return left

    def late(left: DrainPlan, refusals: Mapping[str, str], seconds: int) -> tuple[Finding, ...]:
        return (not_drained_finding(node, seconds, left, refusals),)

    emptying = Drainer(
        cluster, pods_of(node), select, late, seconds=terms.timeout_seconds, title="draining", on_progress=say
    )
    emptying.run(stopped)
    return tuple(emptying.evicted.values())


@dataclass(slots=True)
class Evictor:
    """Asks for evictions, and remembers the answers."""

    cluster: KubeClient
    version: str = ""  # the API version of an Eviction; asked for if it is not known
    refusals: dict[str, str] = field(default_factory=dict)  # uid of a pod that the API server does not let go -> why

    def evict(self, pod: ObjectRef, uid: str) -> bool:
        """Ask once; return whether the API server lets a pod go. Raises NotFoundError, ConflictError if it is gone."""
        self.version = self.version or self.cluster.eviction_version()
        try:
            self.cluster.evict(pod, uid, api_version=self.version)
        except (NotFoundError, ConflictError):
            raise
        except (InvalidError, UnreachableError) as error:
            self.refusals[uid] = error.findings[0].evidence or error.findings[0].what
            return False
        self.refusals.pop(uid, None)
        return True


@dataclass(slots=True)
class Drainer:
    """Evictions until none of some pods is left."""

    cluster: KubeClient
    scope: Scope  # where the pods are
    select_pods: Callable[[Iterable[Manifest]], DrainPlan]  # sorts what is there; raises what forbids it
    # what is wrong with pods that are still there after so many seconds, by what kept each
    timeout_findings: Callable[[DrainPlan, Mapping[str, str], int], tuple[Finding, ...]]
    seconds: int  # how long it may take; 0 means: as long as it takes
    title: str  # what is done, for people
    on_progress: OnProgress  # told what is waited for, whenever something has happened
    # uid of a pod that the API server lets go -> the pod in words
    evicted: dict[str, str] = field(default_factory=dict)
    _asked: float = -math.inf

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Go on until they are gone; ``stopped`` is asked again and again. Raises as `drain`."""
        evictor = Evictor(self.cluster)
        with InformerCache(self.cluster, [self.scope]) as cache:
            began = time.monotonic()  # each pod is asked for once, however slow the list of them was
            while (left := self.select_pods(cache.list(POD).values())).leaving:
                passed = time.monotonic() - began
                if stopped() or (self.seconds and passed > self.seconds):
                    raise RunFailedError(*self.timeout_findings(left, evictor.refusals, round(passed)))
                self._evict(left, evictor)
                self.on_progress(f"{self.title}: {_describe_wait(left, evictor.refusals)}")
                cache.wait(_RETRY_SECONDS)

    def _evict(self, left: DrainPlan, evictor: Evictor) -> None:
        """Ask for pods that have not been asked for, and now and then for those that were refused."""
        again = time.monotonic() - self._asked >= _RETRY_SECONDS
        self._asked = time.monotonic() if again else self._asked
        for pod in left.evict:
            uid = pod["metadata"]["uid"]
            if uid not in self.evicted and (again or uid not in evictor.refusals):
                with contextlib.suppress(NotFoundError, ConflictError):  # it is gone, and the watch will say so
                    if evictor.evict(ref_of(pod), uid):
                        self.evicted[uid] = describe_pod(pod)


def _describe_wait(left: DrainPlan, refusals: Mapping[str, str]) -> str:
    """Say what is waited for; first, as lines get cut, what keeps a pod."""
    first = next((pod for pod in left.leaving if pod["metadata"]["uid"] in refusals), left.leaving[0])
    why = refusals.get(first["metadata"]["uid"], "")
    more = f" and {len(left.leaving) - 1} more" if len(left.leaving) > 1 else ""
    return f"{f'{why}: ' if why else 'waits for '}{describe_pod(first)}{more}"
