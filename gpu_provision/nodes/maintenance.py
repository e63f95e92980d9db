"""Cordons and drains nodes around the reboots of their machines."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpu_provision.hosts.messages import DrainPreview, HostMembership, NodeRole, OnProgress
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.config import resolve_context
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.lock import WriteLock
from gpu_provision.kube.observe import NODE, node_facts, ready_message
from gpu_provision.model import codes
from gpu_provision.model.cluster import ClusterFacts, Manifest, NodeFacts, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ProvisionError, RunFailedError
from gpu_provision.model.hosts import Drain
from gpu_provision.model.inventory import Inventory
from gpu_provision.nodes import drain as drain_of_nodes
from gpu_provision.planning.drain_rules import data_loss_finding, describe_pod
from gpu_provision.planning.prepare import prepare

PURPOSE = "reboot"
_LOOK_SECONDS = 1.0
_ROLES = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_NOT_REBOOTED, _STAYS = "its machine is not rebooted", "the node stays cordoned, and no further machine is rebooted"
_FIX = "see to its kubelet, then run again, which uncordons it; more time: host_prerequisites.reboot_timeout"


@dataclass(slots=True)
class NodeMaintenance:
    """The maintenance of one run: see gpu_provision.hosts.messages.Maintenance.

    From its first cordon to `close` it has the lock of its stack: two runs together would take more nodes away than
    each of them may, and a rollout has nodes of its own. The very first run finds no namespace to lock in: it is made,
    as the run would make it, and goes again if no node has left after all.
    """

    inventory: Inventory  # names the cluster, which is asked when the first question comes
    _cordoned: set[str] = field(default_factory=set)
    _cluster: KubeClient | None = None
    _nodes: dict[str, NodeFacts] | str | None = None
    _asking: threading.RLock = field(default_factory=threading.RLock)
    _lock: WriteLock | None = None
    _locking: threading.Lock = field(default_factory=threading.Lock)
    _created_namespace: ObjectRef | None = None
    _has_drained: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def cordoned(self) -> frozenset[str]:
        """The nodes that are cordoned by us at the moment."""
        return frozenset(self._cordoned)

    def membership(self, node: str) -> HostMembership:
        """Return what a node is. Asks the cluster once for all nodes, and raises nothing."""
        with self._asking:
            if self._nodes is None:
                try:
                    self._nodes = {each.name: each for each in map(node_facts, self._connect().list(NODE).items)}
                except ProvisionError as error:
                    self._nodes = error.findings[0].what
            known = self._nodes
        if isinstance(known, str):
            return HostMembership(role=NodeRole.UNKNOWN, unknown_reason=known)
        if node not in known:
            return HostMembership(role=NodeRole.NOT_A_NODE)
        place = NodeRole.CONTROL_PLANE if any(role in known[node].labels for role in _ROLES) else NodeRole.MEMBER
        return HostMembership(role=place, left_cordoned=drain_of_nodes.is_cordoned_for(known[node], PURPOSE))

    def preview_drain(self, node: str, drain: Drain) -> DrainPreview:
        """Return what `cordon_and_drain` would do; changes nothing."""
        left = drain_of_nodes.preview_drain(self._connect(), node, drain)
        refusal = data_loss_finding(node, left)
        return DrainPreview(
            pods=tuple(describe_pod(pod) for pod in left.evict),
            refusal=replace(refusal, consequence=_NOT_REBOOTED) if refusal else None,
        )

    def cordon_and_drain(self, node: str, drain: Drain, say: OnProgress) -> tuple[str, ...]:
        """Cordon a node and take its pods off it; return them in words.

        Raises ProvisionError; the node is as it was then, but for pods that have moved.
        """
        if refusal := self.preview_drain(node, drain).refusal:
            raise RunFailedError(refusal)
        cluster = self._connect()
        try:
            self._acquire_lock(say)
        except ProvisionError as error:
            raise RunFailedError(*(replace(each, consequence=_NOT_REBOOTED) for each in error.findings)) from error
        if drain_of_nodes.cordon(cluster, node, PURPOSE):
            self._cordoned.add(node)
        say("draining")
        try:
            pods = drain_of_nodes.drain(cluster, node, drain, say=_skip_repeated(say), stopped=self._stopped.is_set)
        except ProvisionError as error:
            with contextlib.suppress(ProvisionError):  # the same that ended the drain, then
                self._uncordon(node)
            stays = ", and its node stays cordoned" if node in self._cordoned else ""
            raise RunFailedError(
                *(replace(each, consequence=_NOT_REBOOTED + stays) for each in error.findings)
            ) from error
        self._has_drained = True
        return pods

    def wait_and_uncordon(self, node: str, boot_id: str, seconds: int, say: OnProgress) -> None:
        """Wait until a node is ready in this boot, and undo our cordon, which stays on any ProvisionError."""
        give_up, tell = time.monotonic() + seconds, _skip_repeated(say)
        scope = Scope(NODE, field_selector=f"metadata.name={node}")
        with InformerCache(self._connect(), [scope], patience=seconds) as cache:
            while why := _not_ready_reason(cache.list(NODE).values(), boot_id):
                if self._stopped.is_set() or time.monotonic() > give_up:
                    what = f"the machine is back, and its node is not ready {seconds} s later"
                    raise RunFailedError(
                        Finding(
                            code=codes.REBOOT_TIMEOUT, what=what, where=node, evidence=why, consequence=_STAYS, fix=_FIX
                        )
                    )
                tell(f"waiting for the node: {why}")
                cache.wait(_LOOK_SECONDS)
        self._acquire_lock(say)
        self._uncordon(node)

    def stop(self) -> None:
        """End all waiting; drains that are under way are taken back."""
        self._stopped.set()
        if self._cluster is not None:
            self._cluster.cancel_retries()

    def close(self) -> None:
        """Give the lock back; a run that follows takes it again."""
        with self._locking:
            lock, self._lock = self._lock, None
            if lock is None:
                return
            if self._created_namespace and not (self._has_drained or self._cordoned):
                with contextlib.suppress(ProvisionError):  # it stays, empty: the next run uses it
                    self._connect().delete(self._created_namespace)
            lock.__exit__()

    def _acquire_lock(self, say: OnProgress) -> None:
        """Take the lock if it is not ours yet. Raises LockedError, ForbiddenError if its namespace cannot be made."""
        with self._locking:
            if self._lock is not None:
                return
            cluster = self._connect()
            home = ObjectRef("v1", "Namespace", "", self.inventory.cluster.namespace)
            if cluster.get(home) is None:  # it is made as a run makes it, so that a removal knows it as the stack's
                _, desired = prepare(self.inventory, ClusterFacts())
                cluster.apply(next(each for each in desired["prerequisites"] if ref_of(each) == home))
                self._created_namespace = home
            self._lock = WriteLock(cluster, self.inventory, on_wait=say).__enter__()

    def _uncordon(self, node: str) -> None:
        drain_of_nodes.uncordon(self._connect(), node, PURPOSE)
        self._cordoned.discard(node)

    def _connect(self) -> KubeClient:
        with self._asking:
            if self._cluster is None:
                self._cluster = connect(*resolve_context(self.inventory))
            return self._cluster


def _skip_repeated(say: OnProgress) -> OnProgress:
    """Return a function that passes on what differs from the last time."""
    last = ""

    def report(message: str) -> None:
        nonlocal last
        if message != last:
            last = message
            say(message)

    return report


def _not_ready_reason(found: Iterable[Manifest], boot_id: str) -> str:
    """Return what a node lacks to be ready in a boot; empty for nothing."""
    node = next(iter(found), None)
    if node is None:
        return "the cluster has no such node"
    facts = node_facts(node)
    if facts.boot_id != boot_id:
        return "its kubelet has not reported since the reboot"
    message = ready_message(node)
    return "" if facts.ready else f"it is not ready{f': {message}' if message else ''}"
