"""Carries an adoption out, up to the apply that completes it, and after.

Every step finds out by itself what is still to be done, so the next process goes on after a killed one. The
ClusterPolicy goes last: as long as it is there an adoption is not over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from gpu_provision.adopt import codes, feature_discovery
from gpu_provision.adopt.discovery import (
    DRIVER_APP,
    NODE_FEATURE,
    REVISION,
    Found,
    is_operator,
)
from gpu_provision.adopt.drivers import Driver
from gpu_provision.adopt.ownership import handed_over, is_handed_over, without_owners
from gpu_provision.adopt.plan import Adoption, Fate, Handled
from gpu_provision.components import labels
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import ConflictError, NotFoundError
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import POD
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Manifest, ObjectRef, Permission, ref_of
from gpu_provision.model.findings import Finding, RunFailed
from gpu_provision.reconcile import permissions as needs

Say = Callable[[str], None]
_Item = TypeVar("_Item")

WAIT_SECONDS = 300.0
_LOOK_SECONDS = 0.25
_PARALLEL = 12
_TRIES = 8  # of a write to an object that a controller keeps writing to
_REPLICAS = "gpu-provision.io/adopted-replicas"  # what the operator's Deployment asked for before
_WORKLOADS = ("Deployment", "DaemonSet")


@dataclass(frozen=True, slots=True)
class Adopting:
    """One adoption being carried out."""

    cluster: Cluster
    say: Say = lambda _: None

    def hand_over(self, adoption: Adoption) -> None:
        """Make everything ours that stays, without touching a running driver, and take away what is in the way.

        Raises:
            RunFailed: The operator does not stop, or an object does not go.
            ProvisionError: As the API server answers.
        """
        self._stop(adoption.operators)
        uids = frozenset(policy["metadata"]["uid"] for policy in adoption.policies)
        self.say(f"{len(adoption.of(Fate.TAKEN, Fate.LEFT))} objects change hands")
        self._each(partial(self._take, uids=uids), adoption.of(Fate.TAKEN))
        self._each(partial(self._release, uids=uids), adoption.of(Fate.LEFT))
        # Our DaemonSets take their pods off nodes that they do not select: labels come first.
        self._each(lambda node: self.cluster.label(node.ref, node.uid, node.changes), adoption.nodes)
        self._each(self._mark, adoption.drivers)
        self._clear(item for item in adoption.of(Fate.REPLACED, Fate.REMOVED) if _is_owned(item.live, uids))
        for pod in adoption.leftovers:
            self._delete(pod)
        self.say("the objects have changed hands; applying the inventory")

    def finish(self, adoption: Adoption, look: Callable[[], Found]) -> None:
        """Take away what ours has replaced, and last the ClusterPolicy, which takes nothing with it.

        Args:
            adoption: As looked at after the apply.
            look: Looks at the cluster again.

        Raises:
            RunFailed: Our Node Feature Discovery does not speak, or something still belongs to the ClusterPolicy.
        """
        self._stop(adoption.operators)
        self._await_discovery(adoption)
        # First: a later run finds the revisions' namespace by the objects that go here.
        self._delete_revisions(adoption)
        for doomed in _in_order(adoption):
            self._each(self._delete, doomed)
        found = look()
        if found.owned:
            raise RunFailed(_still_owned(found))
        for policy in adoption.policies:
            self.say(f"{ref_of(policy)} goes, and nothing with it")
            self.cluster.delete_orphaning(ref_of(policy), uid=policy["metadata"]["uid"])
            self._await_end(ref_of(policy), policy["metadata"]["uid"])

    def _each(self, do: Callable[[_Item], object], items: Iterable[_Item]) -> None:
        with RequestPool(self.cluster, _PARALLEL) as pool:
            list(pool.map(do, items))

    def _stop(self, operators: Iterable[Manifest]) -> None:
        for item in operators:
            replicas = item["spec"].get("replicas", 1)
            if replicas:
                self.say(f"{ref_of(item)} stops")
                metadata = {"uid": item["metadata"]["uid"], "annotations": {_REPLICAS: str(replicas)}}
                self.cluster.merge(ref_of(item), {"metadata": metadata, "spec": {"replicas": 0}})
            self._until(
                partial(self._has_stopped, item),
                f"{ref_of(item)} still has pods, although it is scaled to 0",
                "see what holds them: kubectl get pods; then run this again, it goes on",
            )

    def _has_stopped(self, deployment: Manifest) -> bool:
        selector = ",".join(f"{key}={value}" for key, value in deployment["spec"]["selector"]["matchLabels"].items())
        namespace = deployment["metadata"]["namespace"]
        return not self.cluster.list(POD, namespace=namespace, label_selector=selector).items

    def _take(self, item: Handled, *, uids: frozenset[str]) -> None:
        """Let go of the owner and hand the fields over, in one write."""
        self._rewrite(item, lambda live: _taken(live, uids))

    def _release(self, item: Handled, *, uids: frozenset[str]) -> None:
        self._rewrite(item, lambda live: _released(live, uids))

    def _rewrite(self, item: Handled, change: Callable[[Manifest], dict[str, object]]) -> None:
        """Change the metadata of exactly the object that was looked at; look again where somebody was faster."""
        live: Manifest | None = item.live
        for _ in range(_TRIES):
            if live is None or live["metadata"]["uid"] != item.live["metadata"]["uid"]:
                return
            metadata = change(live)
            if not metadata:
                return
            version = {"resourceVersion": live["metadata"]["resourceVersion"]}
            try:
                self.cluster.merge(item.ref, {"metadata": {**metadata, **version}})
            except ConflictError:
                live = self.cluster.get(item.ref)
            else:
                return
        raise RunFailed(_not_done(f"{item.ref} is written to by somebody all the time", str(item.ref)))

    def _mark(self, driver: Driver) -> None:
        """Give a running driver pod the labels by which our DaemonSet takes it up, and its annotations."""
        metadata = {"uid": driver.uid, "labels": dict(driver.labels), "annotations": dict(driver.annotations)}
        try:
            self.cluster.merge(driver.ref, {"metadata": metadata})
        except (NotFoundError, ConflictError):
            return  # it is gone; the next one is made from our template

    def _clear(self, items: Iterable[Handled]) -> None:
        """Delete what is in the way of ours; the pods of drivers stay where they are."""
        doomed = list(items)
        for item in doomed:
            uid = item.live["metadata"]["uid"]
            if _is_driver(item.live):
                self.say(f"{item.ref} goes, its pods stay")
                self.cluster.delete_orphaning(item.ref, uid=uid)
            else:
                self._delete(item.live)
        for item in doomed:
            self._await_end(item.ref, item.live["metadata"]["uid"])

    def _delete(self, item: Manifest) -> None:
        try:
            self.cluster.delete(ref_of(item), uid=item["metadata"]["uid"])
        except ConflictError:
            return  # another one of this name is not the one that was looked at

    def _await_end(self, ref: ObjectRef, uid: str) -> None:
        def is_gone() -> bool:
            live = self.cluster.get(ref)
            return live is None or live["metadata"]["uid"] != uid

        self._until(is_gone, f"{ref} does not go", f"see metadata.finalizers of it: kubectl get {ref.kind} {ref.name}")

    def _await_discovery(self, adoption: Adoption) -> None:
        """Wait until ours has seen every node: a node that nobody has seen loses its labels, and its operands."""
        if not adoption.replaces_discovery:
            return
        features = Scope(NODE_FEATURE, namespace=adoption.discovery)
        workers = Scope(POD, f"{labels.STACK}={adoption.inventory}")
        began, give_up, told = datetime.now(UTC), time.monotonic() + WAIT_SECONDS, ""
        with Mirror(self.cluster, [features, workers], keep=trim) as mirror:
            while missing := feature_discovery.missing(adoption.targets, mirror.of(features), mirror.of(workers)):
                left = give_up - time.monotonic()
                if left < 0:
                    raise RunFailed(feature_discovery.not_seen(missing, WAIT_SECONDS))
                if (message := feature_discovery.waiting(missing, began, WAIT_SECONDS)) != told:
                    self.say(message)
                told = message
                mirror.wait(left)

    def _delete_revisions(self, adoption: Adoption) -> None:
        """The old driver DaemonSet's revisions have lost their owner like its pods, and serve nobody."""
        for namespace in sorted({item.ref.namespace for item in adoption.objects if item.ref.namespace}):
            for item in self.cluster.list(
                REVISION, namespace=namespace, label_selector=f"{labels.APP}={DRIVER_APP}"
            ).items:
                if not item["metadata"].get("ownerReferences"):
                    self._delete(item)

    def _until(self, condition: Callable[[], bool], what: str, fix: str) -> None:
        give_up = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > give_up:
                raise RunFailed(_not_done(what, self.cluster.name, fix=fix))
            time.sleep(_LOOK_SECONDS)


def _taken(live: Manifest, uids: frozenset[str]) -> dict[str, object]:
    if is_handed_over(live):
        return _released(live, uids)
    return {"ownerReferences": without_owners(live, uids), "managedFields": handed_over(live)}


def _released(live: Manifest, uids: frozenset[str]) -> dict[str, object]:
    return {"ownerReferences": without_owners(live, uids)} if _is_owned(live, uids) else {}


def _is_owned(item: Manifest, uids: frozenset[str]) -> bool:
    return any(owner["uid"] in uids for owner in item["metadata"].get("ownerReferences") or ())


def _is_driver(item: Manifest) -> bool:
    return item["kind"] == "DaemonSet" and (item["metadata"].get("labels") or {}).get(labels.APP) == DRIVER_APP


def _in_order(adoption: Adoption) -> Iterator[list[Manifest]]:
    """Yield what runs, then what it needed; last the operator, which names the release for whoever has to go on."""
    theirs = [item.live for item in adoption.of(Fate.REMOVED) if not is_operator(item.live)]
    yield [item for item in theirs if item["kind"] in _WORKLOADS]
    yield [item for item in theirs if item["kind"] not in _WORKLOADS]
    yield [item.live for item in adoption.of(Fate.REMOVED) if is_operator(item.live)]


def _still_owned(found: Found) -> Finding:
    names = ", ".join(str(ref) for ref in sorted(found.owned))
    return _not_done(
        "something still belongs to the ClusterPolicy and would go with it, so it stays",
        found.cluster,
        evidence=names,
        fix="see whether somebody has started the operator again; then run this again, it goes on",
    )


def _not_done(what: str, where: str, *, evidence: str = "", fix: str = "run this again, it goes on") -> Finding:
    return Finding(code=codes.NOT_DONE, what=what, where=where, evidence=evidence, fix=fix)


def permissions(adoption: Adoption) -> Iterator[Permission]:
    """Yield what carrying an adoption out needs besides what the apply needs."""
    for operator in adoption.operators:
        yield from needs.permissions(ref_of(operator), "patch", "delete")
    for item in adoption.objects:
        verbs = {Fate.TAKEN: ("patch",), Fate.LEFT: ("patch",)}.get(item.fate, ("delete",))
        yield from needs.permissions(item.ref, *verbs)
    for node in adoption.nodes:
        yield from needs.permissions(node.ref, "patch")
    for driver in adoption.drivers:
        yield from needs.permissions(driver.ref, "patch")
    for policy in adoption.policies:
        yield from needs.permissions(ref_of(policy), "delete")
    if adoption.replaces_discovery:
        yield from needs.permissions(ObjectRef(*NODE_FEATURE, adoption.discovery, ""), "list", "watch")
