"""Looks after every GPUStack of a cluster while it leads; a thin shell around what ``gpu-provision apply`` does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.holders import identity
from gpu_provision.cluster.observe import NODE
from gpu_provision.cluster.slim import slim
from gpu_provision.cluster.watching import Mirror, Scope
from gpu_provision.engine.resident import of_one
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import ProvisionError
from gpu_provision.operator.conditions import Halt
from gpu_provision.operator.hindrances import Hindrances
from gpu_provision.operator.keeper import Aim, Keeper
from gpu_provision.operator.leadership import RENEW_SECONDS, Leadership
from gpu_provision.operator.manifests import NAME, NAMESPACE
from gpu_provision.operator.metrics import Snapshot
from gpu_provision.operator.notes import Note, Take
from gpu_provision.operator.stack import STACK
from gpu_provision.operator.wishes import Wish

_STEP_SECONDS = 10.0
_DEAD_SECONDS = 180.0  # longer than any request that is repeated
_STACKS, _NODES = Scope(STACK), Scope(NODE)


class Controller:
    """One of any number of controllers; one of them leads."""

    def __init__(self, cluster: Cluster, *, aim: Aim, take: Take, namespace: str = NAMESPACE) -> None:
        """Prepare; nothing is asked. ``take`` is called from several threads."""
        self._cluster, self._aim, self._take = cluster, aim, take
        self._lease = ObjectRef("coordination.k8s.io/v1", "Lease", namespace, NAME)
        self._keepers: dict[str, Keeper] = {}
        self._hindrances = Hindrances(take)
        self._stopping = threading.Event()
        self._mirror: Mirror | None = None
        self._is_leader = False
        self._turned_at = time.monotonic()

    def look(self) -> Snapshot:
        """Return the figures of this moment; from any thread."""
        keepers = list(self._keepers.values())
        figures = {keeper.name: keeper.figures for keeper in keepers}
        return Snapshot(self._is_leader, self._cluster.requests, self._cluster.retries, figures)

    def why_dead(self) -> str:
        """Say why this process is of no use any more; empty if it is."""
        if dead := [keeper.name for keeper in list(self._keepers.values()) if not keeper.is_alive]:
            return f"nobody looks after {', '.join(dead)} any more"
        silent = time.monotonic() - self._turned_at
        return f"the controller has been silent for {silent:.0f} s" if silent > _DEAD_SECONDS else ""

    def why_unready(self) -> str:
        """Return why this controller cannot lead or take over now, or may see old objects; empty if it can."""
        if silent := self._cluster.silence.seconds:
            return f"the API server has not answered for {silent:.0f} s"
        own = mirror.problem if (mirror := self._mirror) else ""
        return next(filter(None, [own, *(keeper.watch_problem for keeper in list(self._keepers.values()))]), "")

    def stop(self) -> None:
        """End after the current steps, with lease and locks given back; from any thread."""
        self._stopping.set()
        self._cluster.hurry()
        if mirror := self._mirror:
            mirror.wake()

    def run(self) -> None:
        """Wait for the leadership, lead, and begin again if it is lost, until `stop` is called."""
        while not self._stopping.is_set():
            self._turned_at = time.monotonic()
            try:
                self._serve()
            except ProvisionError as error:
                self._take(Note(reason="Waiting", message=str(error), is_warning=True))
                self._stopping.wait(RENEW_SECONDS)  # the API server does not answer, or refuses us: ask again

    def _serve(self) -> None:
        leadership = Leadership(self._cluster, self._lease, identity())
        with self._following(of_one(self._lease)) as mirror:
            while not self._stopping.is_set() and not leadership.wait(mirror):
                self._turned_at = time.monotonic()
        if not self._stopping.is_set():
            self._lead(leadership)

    @contextlib.contextmanager
    def _following(self, *scopes: Scope) -> Iterator[Mirror]:
        with Mirror(self._cluster, scopes, keep=slim) as mirror:
            self._mirror = mirror
            try:
                yield mirror
            finally:
                self._mirror = None

    def _lead(self, leadership: Leadership) -> None:
        self._take(Note(reason="Leading", message=f"{leadership.identity} leads"))
        self._is_leader = True
        try:
            with self._following(_STACKS) as mirror:
                while not self._stopping.is_set():
                    self._turned_at = time.monotonic()
                    if leadership.renew_in() == 0.0 and not leadership.renew():
                        message = f"{leadership.identity} leads no more: {leadership.name} was not renewed in time"
                        self._take(Note(reason="Following", message=message, is_warning=True))
                        return
                    if dead := self.why_dead():
                        raise RuntimeError(dead)  # a mistake of ours: whoever started this process starts it anew
                    self._attend(mirror, leadership)
                    spent = time.monotonic() - self._turned_at
                    mirror.wait(leadership.renew_in())
                    self._stopping.wait(min(spent, RENEW_SECONDS))  # many events, one look
        finally:
            self._is_leader = False
            self._dismiss(list(self._keepers), leadership)
            leadership.give_back()

    def _attend(self, mirror: Mirror, leadership: Leadership) -> None:
        """Have a keeper for every stack, told what the stack is now."""
        stacks = {str(stack["metadata"]["uid"]): stack for stack in mirror.of(_STACKS).values()}
        self._dismiss([uid for uid in self._keepers if uid not in stacks], leadership)
        hindrances = self._judged(stacks.values(), mirror)
        for uid, stack in stacks.items():
            wish = Wish(stack, hindrances.get(stack["metadata"]["name"]))
            if uid in self._keepers:
                self._keepers[uid].take(wish)
            else:
                keeper = Keeper(self._cluster, wish, aim=self._aim, take=self._take, mandate=leadership)
                self._keepers[uid] = keeper
                keeper.start()

    def _judged(self, stacks: Collection[Manifest], mirror: Mirror) -> Mapping[str, Halt]:
        if len(stacks) < 2:  # noqa: PLR2004 - it takes two
            return {}
        mirror.follow(_NODES)
        return self._hindrances.look(stacks, mirror.of(_NODES).values())

    def _dismiss(self, uids: Iterable[str], leadership: Leadership) -> None:
        """Have keepers end; what they write meanwhile needs the leadership."""
        until = time.monotonic() + _STEP_SECONDS
        going = [self._keepers.pop(uid) for uid in uids]
        for keeper in going:
            keeper.stop()
        while (left := [keeper for keeper in going if keeper.is_alive]) and time.monotonic() < until:
            is_ours = leadership.renew_in() > 0.0 or leadership.renew()
            left[0].join(leadership.renew_in() if is_ours else RENEW_SECONDS)
