"""Work on every GPUStack of a cluster while this controller leads: one worker thread for each stack."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from gpu_provision.destroy.discovery import DestroyOptions, discover
from gpu_provision.destroy.runner import DestroyRunner
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.fence import Mandate, identity
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import NODE
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event
from gpu_provision.operator.conflicts import Hindrances
from gpu_provision.operator.events import Note, Take, of_mistake
from gpu_provision.operator.finalizer import Reporter, hold, let_go
from gpu_provision.operator.leader_election import RENEW_SECONDS, USUAL, Leadership
from gpu_provision.operator.manifests import NAME, NAMESPACE
from gpu_provision.operator.queue import Backoff, Wish
from gpu_provision.operator.reconciler import Upkeep
from gpu_provision.operator.stack import STACK, home_of, inventory_of, moved
from gpu_provision.operator.status import (
    Halt,
    Reason,
    halt_of,
    mistake,
    since,
)
from gpu_provision.operator.telemetry import Snapshot, StackFigures
from gpu_provision.reconcile.observer import scope_of_object
from gpu_provision.reconcile.session import Session

Aim = Callable[[Inventory], Inventory]
"""Says which cluster an inventory means: the one that the controller looks after."""

_ASK_AGAIN_SECONDS = 60.0


class Keeper:
    """Carries out the last wish for one stack."""

    def __init__(self, cluster: Cluster, wish: Wish, *, aim: Aim, take: Take, mandate: Mandate | None = None) -> None:
        """Prepare; `start` begins.

        Args:
            take: Called from the keeper's thread.
            mandate: What the right to write to the stack rests on besides its lock.
        """
        self._cluster, self._wish, self._aim, self._take, self._mandate = cluster, wish, aim, take, mandate
        self._reporter = Reporter(cluster, wish.stack, take)
        self._backoff = Backoff()
        self._news = threading.Condition()
        self._upkeep: Upkeep | None = None
        self._rolled_back: Mapping[int, Halt] = {}  # by generation: what failed is not tried again
        self._stopped = False
        self._thread = threading.Thread(target=self._keep, name=f"stack {wish.name}", daemon=True)

    @property
    def name(self) -> str:
        """Of the stack."""
        return self._wish.name

    @property
    def figures(self) -> StackFigures:
        """What is counted of it."""
        return self._reporter.figures

    @property
    def is_alive(self) -> bool:
        """Whether its thread goes on; it ends by itself only by a mistake of ours."""
        return self._thread.is_alive()

    @property
    def watch_problem(self) -> str:
        """Why what is known of the stack may be out of date; empty if all is well."""
        return upkeep.watch_problem if (upkeep := self._upkeep) else ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def take(self, wish: Wish) -> None:
        """Ask for something else from now on; a run for what was asked before ends after its current step."""
        with self._news:
            if wish.asks_the_same_as(self._wish):
                return
            self._wish = wish
        self._wake()

    def stop(self) -> None:
        """End after the current step; `join` tells when."""
        self._stopped = True
        self._wake()

    def join(self, seconds: float) -> None:
        """Wait for the end, in which locks are given back, for at most so long."""
        self._thread.join(seconds)

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()
        if upkeep := self._upkeep:
            upkeep.wake()

    def _keep(self) -> None:
        while not self._stopped:
            wish = self._wish
            try:
                self._fulfil(wish)
            except ProvisionError as error:
                self._backoff.failed(time.monotonic())
                self._halted(wish, since(self._rolled_back.get(wish.generation), halt_of(error.findings)))
            except Exception as error:  # noqa: BLE001 - a mistake of ours about one stack is none about the others
                self._backoff.failed(time.monotonic())
                self._take(of_mistake(error, wish.name))
                self._halted(wish, mistake(error))

    def _fulfil(self, wish: Wish) -> None:
        if wish.is_to_go:
            self._part_with(wish)
            return
        if wish.hindrance:
            self._halted(wish, wish.hindrance)
            return
        inventory, findings = inventory_of(wish.stack)
        problem = moved(wish.stack, inventory) if inventory else None
        halt = halt_of([*findings, *filter(None, [problem])], Reason.INVALID)
        if halt or inventory is None:
            self._halted(wish, halt)
            return
        lease = self._mandate.name if self._mandate else USUAL
        hold(self._cluster, ref_of(wish.stack), inventory.cluster.namespace, "" if lease == USUAL else lease)
        upkeep = Upkeep(
            wish,
            self._aim(inventory),
            self._reporter,
            self._take,
            is_over=lambda: self._is_over(wish),
            mandate=self._mandate,
            rolled_back=self._rolled_back.get(wish.generation),
        )
        self._look_after(upkeep)
        self._rolled_back = {}
        self._backoff.succeeded()

    def _look_after(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        try:
            upkeep.go_on()
        finally:
            self._upkeep = None
            self._rolled_back = {upkeep.wish.generation: upkeep.rolled_back} if upkeep.rolled_back else {}

    def _part_with(self, wish: Wish) -> None:
        """Let the object go: at once if what it has installed is to stay, else only when nothing of that is left."""
        if wish.is_to_be_released or self._is_removed(wish):
            let_go(self._cluster, ref_of(wish.stack))
            self._rest(wish, _ASK_AGAIN_SECONDS)

    def _is_removed(self, wish: Wish) -> bool:
        """Take the stack off the cluster; say whether the audit finds nothing left."""
        inventory = self._aim(_at_home(inventory_of(wish.stack)[0] or _bare(wish.stack), wish.stack))
        cluster = Session(inventory, mandate=self._mandate).cluster  # a connection of its own: the lock fences it
        terms = DestroyOptions()
        looked = discover(cluster, inventory, terms)
        removing = DestroyRunner(cluster, inventory, looked, terms, lambda event: self._say(wish, event))
        self._reporter.report(wish.standing(is_working=True), time.monotonic())
        if halt := halt_of(removing.execute().findings, Reason.REMOVING):
            self._backoff.failed(time.monotonic())
            self._halted(wish, halt)
            return False
        return True

    def _say(self, wish: Wish, event: Event) -> None:
        self._take(Note(reason="Removing", message=event.message, stack=wish.name))

    def _halted(self, wish: Wish, halt: Halt | None) -> None:
        """Say why nothing is done, and wait until something else is asked, or until it is time to try again."""
        while (wait := self._reporter.report(wish.standing(halt=halt), time.monotonic())) < float("inf"):
            self._rest(wish, wait)
            if self._is_over(wish):
                return
        self._rest(wish, self._backoff.left(time.monotonic()) or None)

    def _rest(self, wish: Wish, seconds: float | None) -> None:
        with self._news:
            self._news.wait_for(lambda: self._is_over(wish), seconds)

    def _is_over(self, wish: Wish) -> bool:
        return self._stopped or wish is not self._wish


def _at_home(inventory: Inventory, stack: Manifest) -> Inventory:
    """Return the inventory of where the stack was installed, whatever it declares by now."""
    home = home_of(stack) or inventory.cluster.namespace
    return replace(inventory, cluster=replace(inventory.cluster, namespace=home))


def _bare(stack: Manifest) -> Inventory:
    """Return what it takes to remove a stack whose declaration nobody can use any more."""
    spec = stack.get("spec")
    cluster = spec.get("cluster") if isinstance(spec, dict) else None
    home = {"cluster": cluster} if isinstance(cluster, dict) else {}
    bare = inventory_of({**stack, "spec": home})[0] or inventory_of({**stack, "spec": {}})[0]
    if bare is None:
        raise AssertionError  # an empty declaration is valid
    return bare


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
        leadership = Leadership(self._cluster, self._lease, process_identity())
        with self._following(scope_of_object(self._lease)) as mirror:
            while not self._stopping.is_set() and not leadership.wait(mirror):
                self._turned_at = time.monotonic()
        if not self._stopping.is_set():
            self._lead(leadership)

    @contextlib.contextmanager
    def _following(self, *scopes: Scope) -> Iterator[Mirror]:
        with Mirror(self._cluster, scopes, keep=trim) as mirror:
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
