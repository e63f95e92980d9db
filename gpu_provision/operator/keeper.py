"""Looks after one stack in a thread of its own, whatever is asked of it meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.mandates import Mandate
from gpu_provision.engine.removal_look import Terms, look
from gpu_provision.engine.removing import Removing
from gpu_provision.engine.session import Session
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event
from gpu_provision.operator.backoff import Backoff
from gpu_provision.operator.conditions import Halt, Reason, halt_of, mistake, since
from gpu_provision.operator.figures import StackFigures
from gpu_provision.operator.notes import Note, Take, of_mistake
from gpu_provision.operator.pulse import USUAL
from gpu_provision.operator.stack import home_of, inventory_of, moved
from gpu_provision.operator.stacks import Reporter, hold, let_go
from gpu_provision.operator.upkeep import Upkeep
from gpu_provision.operator.wishes import Wish

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
        terms = Terms()
        looked = look(cluster, inventory, terms)
        removing = Removing(cluster, inventory, looked, terms, lambda event: self._say(wish, event))
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
