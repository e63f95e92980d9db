"""Hold a stack to one declaration: look at live copies, and carry out the same runs as ``gpu-provision apply``.

The process stays small although it lives for months.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gpu_provision.history.rollback import active_inventory
from gpu_provision.kube.fence import Mandate
from gpu_provision.kube.informer import Mirror
from gpu_provision.kube.trim import trim
from gpu_provision.model.findings import InvalidInventory, ProvisionError, RunFailed
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, State
from gpu_provision.operator.events import Note, Take
from gpu_provision.operator.finalizer import Reporter
from gpu_provision.operator.queue import SETTLE_SECONDS, Agenda, Wish
from gpu_provision.operator.stack import back_to_of
from gpu_provision.operator.status import (
    Halt,
    Phase,
    Reason,
    Standing,
    halt_of,
    since,
    verdict,
    was_rolled_back,
)
from gpu_provision.reconcile.observer import Resident, Standpoint, followed
from gpu_provision.reconcile.session import Session

_M_ARENA_MAX = -8  # of glibc's mallopt


def use_one_arena() -> None:
    """Have all threads share one arena of the C library's; call it before they start.

    Each of the threads that follow a kind would else have its own, most of it free.
    """
    with contextlib.suppress(AttributeError):  # glibc alone has arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def tidy_up() -> None:
    """Give free memory back now, and spare what is left from being searched for garbage before the next time.

    Live copies of a thousand nodes are a hundred thousand objects: to search them takes a tenth of a second, and would
    else be done each time that a node joins.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


OTHER_RUN_SECONDS = 5.0
"""For how long somebody else's run is left alone before the next look whether it has ended."""

_MOST_NAMED = 3
_LONGEST_WAIT, _LEAST_WAIT = 30.0, 0.05
_PAUSES, _LONGEST_PAUSE = 4.0, 2.0
_BLIND_WAIT = 1.0  # a watch that has ended is asked for as often
_UNSEEN = "a run waits: a watch has ended, and the API server does not answer a new one, so what is there may be old"
_OTHER_RUN = "a run waits: somebody else's writes to this stack, such as gpu-provision validate --gpus"


@dataclass(slots=True)
class Upkeep:
    """One stack as one wish has it, over any number of runs.

    Attributes:
        is_over: Whether something else is asked by now.
        mandate: What the right to write rests on besides the stack's lock; None for nothing.
        rolled_back: That what is declared has failed, and was taken back: to try it again is for whoever declares it.
    """

    wish: Wish
    inventory: Inventory
    reporter: Reporter
    take: Take
    is_over: Callable[[], bool]
    mandate: Mandate | None = None
    rolled_back: Halt | None = None
    _agenda: Agenda = field(default_factory=Agenda)
    _mirror: Mirror | None = None
    _session: Session | None = None
    _halt: Halt | None = None
    _is_cut_short: bool = False
    _hold_up: str = ""
    _back_to: int = 0
    _gives_way_until: float = float("-inf")
    _held: Inventory | None = None
    _held_under: Halt | None = None

    def __post_init__(self) -> None:
        """Go on where another controller was."""
        self.rolled_back = self.rolled_back or was_rolled_back(self.wish.stack)
        self._back_to = 0 if verdict(self.wish.stack).phase is Phase.READY else back_to_of(self.wish.stack)

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing is to be done: what is declared was taken back, and what it went back to is not on record."""
        return self.rolled_back is not None and self._held is None

    @property
    def _is_out_of_force(self) -> bool:
        """Whether what the stack is held to was rolled back just now."""
        return self.rolled_back is not self._held_under

    @property
    def watch_problem(self) -> str:
        """See `Mirror.problem`."""
        return mirror.problem if (mirror := self._mirror) else ""

    def wake(self) -> None:
        """Look at once whether it is over; from any thread."""
        if mirror := self._mirror:
            mirror.wake()

    def go_on(self) -> None:
        """Look after the stack until something else is asked, or what its declaration refers to has changed.

        Raises:
            ProvisionError: The stack cannot be looked at.
        """
        self._hold_to(self.inventory if self.rolled_back is None else self._in_force())
        while self._is_out_of_force and not self.is_over():
            self._hold_to(self._in_force())

    def _in_force(self) -> Inventory | None:
        """Return what a stack that was rolled back is held to; None, and nothing is done, without a usable record."""
        try:
            found = active_inventory(Session(self.inventory).cluster, self.inventory)
        except (RunFailed, InvalidInventory) as error:
            self.take(Note(reason="Halted", message=str(error.findings[0]), stack=self.wish.name, is_warning=True))
            return None
        if found is None:
            return None
        self._back_to = found.run
        self.take(Note(reason="Holding", message=f"to the versions of run {found.run}", stack=self.wish.name))
        return found.inventory

    def _hold_to(self, inventory: Inventory | None) -> None:
        """Look after the stack until `go_on` is over, or until it was rolled back."""
        self._held, self._held_under = inventory, self.rolled_back
        self._halt, self._agenda = None, Agenda()
        mirror, resident = _watching(Session(inventory or self.inventory))
        with mirror:
            self._mirror = mirror
            tidy_up()
            try:
                while not self.is_over() and not resident.is_outdated() and not self._is_out_of_force:
                    self._turn(resident, mirror)
            finally:
                self._break_off()

    def _turn(self, resident: Resident, mirror: Mirror) -> None:
        now, used = time.monotonic(), time.thread_time()
        found = resident.look(now)
        spent = time.thread_time() - used
        self.reporter.figures.take_needs(len(found.needs), now)
        self._agenda.look(found.needs, now, edited=found.edited)
        self._end(found, now)
        if self._is_out_of_force:
            return
        self._repair_at_once(now)
        is_due = self._session is None and not self._is_at_rest and self._agenda.is_due(now)
        self._hold_up = self._told_hold_up(self._obstacle(mirror, now) if is_due else "")
        if is_due and not self._hold_up:
            self._begin(resident, found, now)
        soon, standing = self._wait(time.monotonic()), self._standing(found)
        can_wait = bool(self._session) if is_due else soon < SETTLE_SECONDS  # what a run writes first comes first
        reported = min(soon, SETTLE_SECONDS) if can_wait else self.reporter.report(standing, now)
        waits = (reported, soon, resident.next_deadline(now), _LONGEST_WAIT)
        looked_at = time.monotonic()
        mirror.wait(max(min(waits), _LEAST_WAIT))
        # Many events, one look. Looking takes half of the time, and a fifth while a run looks, too.
        pause = min(_PAUSES * spent if self._session else spent, _LONGEST_PAUSE)
        time.sleep(max(0.0, pause - (time.monotonic() - looked_at)))

    def _wait(self, now: float) -> float:
        """Return in how many seconds there may be something to do although nothing has happened."""
        if self._is_at_rest:
            return float("inf")
        return _BLIND_WAIT if self._hold_up else self._agenda.wait(now, is_running=self._session is not None)

    def _obstacle(self, mirror: Mirror, now: float) -> str:
        if mirror.silence:
            return _UNSEEN
        return _OTHER_RUN if now < self._gives_way_until else ""

    def _told_hold_up(self, message: str) -> str:
        """Return why a run has to wait; it is told once. Of somebody else's run that run's finding has told."""
        if message == _UNSEEN and message != self._hold_up:
            self.take(Note(reason="Waiting", message=message, stack=self.wish.name, is_warning=True))
        return message

    def _standing(self, found: Standpoint) -> Standing:
        is_well = not found.needs and all(state.state is not State.FAILED for state in found.states.values())
        if is_well:
            self._halt = None  # what stood in the way has gone by itself
        is_about_to = bool(found.needs - self._agenda.undone) and not self._is_at_rest
        is_working = self._session is not None or is_about_to
        halt = since(self.rolled_back, self._halt)
        return self.wish.standing(
            seen=found.seen, states=found.states, is_working=is_working, hold_up=self._hold_up, halt=halt
        )

    def _begin(self, resident: Resident, found: Standpoint, now: float) -> None:
        session = Session(self._held or self.inventory, resident=resident, back_to=self._back_to, mandate=self.mandate)
        session.listen(self._tell)
        self._agenda.begins(now)
        try:
            if not session.reading().plan.is_empty:
                session.start()
                self._session = session
                self.take(Note(reason="RunStarted", message=_first(found.needs), stack=self.wish.name))
                return
            self._halt = None
        except ProvisionError as error:
            self._halt = halt_of(error.findings)
        self._agenda.ran(found.needs, now, is_well=self._halt is None)

    def _end(self, found: Standpoint, now: float) -> None:
        """Take the result of a run that has ended."""
        if self._session is None or self._session.is_running:
            return
        halt, was_cut_short = _result(self._session), self._is_cut_short
        self._session, self._is_cut_short = None, False
        if was_cut_short and halt is None:
            self._agenda.was_cut_short()
            return
        if halt and halt.reason is Reason.OTHER_RUN:
            self._give_way(halt, now)
            return
        self._take_halt(halt)
        tidy_up()
        self._note_end(self._halt)
        self.reporter.figures.take_run(now, is_well=self._halt is None)
        self._agenda.ran(found.needs, now, is_well=self._halt is None)

    def _give_way(self, halt: Halt, now: float) -> None:
        """Leave the stack to a run of somebody else's, such as a validation: that is no failure of ours."""
        self.take(Note(reason=halt.reason, message=halt.message, stack=self.wish.name))
        self._gives_way_until = now + OTHER_RUN_SECONDS
        self._agenda.was_cut_short()

    def _take_halt(self, halt: Halt | None) -> None:
        if halt and halt.reason is Reason.ROLLED_BACK:
            self.rolled_back = halt
        self._halt = halt
        if not (halt or self.rolled_back):
            self._back_to = 0  # what is done later, such as a repair, brings nothing back

    def _repair_at_once(self, now: float) -> None:
        """Have a run end that waits for nodes while somebody edits objects: the next one begins with those."""
        if self._session and self._session.is_following and (edits := self._agenda.new_edits(now)):
            self.take(Note(reason="Edited", message=f"a run begins anew; {_first(edits)}", stack=self.wish.name))
            self._is_cut_short = True
            self._session.cancel()

    def _note_end(self, halt: Halt | None) -> None:
        declared = f", with the versions of run {self._back_to}" if self.rolled_back else ""
        message = halt.message if halt else f"the stack is as declared{declared}"
        reason = halt.reason if halt else "RunSucceeded"
        self.take(Note(reason=reason, message=message, stack=self.wish.name, is_warning=halt is not None))

    def _tell(self, event: Event) -> None:
        place = " on ".join(filter(None, (event.component, event.node)))
        told = " ".join(filter(None, (place, event.state.value if place else "", event.step, event.message)))
        failed = event.state is State.FAILED
        self.take(Note(reason="RunFailing" if failed else "Run", message=told, stack=self.wish.name, is_warning=failed))

    def _break_off(self) -> None:
        self._mirror = None
        if self._session:
            self._session.cancel()
            _result(self._session)


def _watching(session: Session) -> tuple[Mirror, Resident]:
    """Return the live copies of a stack from a reading on, and their reader; the plan of the reading is dropped."""
    reading = session.reading()
    mirror = Mirror(session.cluster, followed(reading), keep=trim, listed=reading.listed)
    return mirror, Resident(reading, mirror)


def _first(needs: Collection[str]) -> str:
    """Say what there is to do, in a line."""
    named = sorted(needs)[:_MOST_NAMED]
    more = f" and {len(needs) - len(named)} more" if len(needs) > len(named) else ""
    return f"to do: {', '.join(named)}{more}"


def _result(session: Session) -> Halt | None:
    """Wait for the end of a run, and return why it did not end as declared."""
    try:
        return halt_of(session.explain())
    except ProvisionError as error:
        return halt_of(error.findings)
