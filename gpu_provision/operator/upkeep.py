"""Holds a stack to one declaration: looks at live copies, and has the same runs done as ``gpu-provision apply``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_provision.cluster.watching import Mirror
from gpu_provision.engine.resident import Resident, Standpoint, followed
from gpu_provision.engine.session import Session
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator.agenda import Agenda
from gpu_provision.operator.conditions import Halt, Standing, halt_of
from gpu_provision.operator.stacks import Reporter
from gpu_provision.operator.wishes import Wish

PATIENCE_SECONDS = 60.0
"""For how long the watches bear an API server that does not answer before the stack is read anew."""

_LONGEST_WAIT, _LEAST_WAIT = 30.0, 0.05


@dataclass(slots=True)
class Upkeep:
    """One stack as one wish has it, over any number of runs.

    Attributes:
        is_over: Whether something else is asked by now.
    """

    wish: Wish
    inventory: Inventory
    reporter: Reporter
    is_over: Callable[[], bool]
    _agenda: Agenda = field(default_factory=Agenda)
    _mirror: Mirror | None = None
    _session: Session | None = None
    _halt: Halt | None = None

    def wake(self) -> None:
        """Look at once whether it is over; from any thread."""
        if mirror := self._mirror:
            mirror.wake()

    def go_on(self) -> None:
        """Look after the stack until something else is asked, or what its declaration refers to has changed.

        Raises:
            ProvisionError: The stack cannot be looked at.
        """
        session = Session(self.inventory)
        reading = session.reading()
        with Mirror(session.cluster, followed(reading), patience=PATIENCE_SECONDS) as mirror:
            self._mirror, resident = mirror, Resident(reading, mirror)
            try:
                while not self.is_over() and not resident.is_outdated():
                    self._turn(resident, mirror)
            finally:
                self._break_off()

    def _turn(self, resident: Resident, mirror: Mirror) -> None:
        now = time.monotonic()
        found = resident.look(now)
        self._end(found, now)
        if self._session is None and self._agenda.is_due(found.needs, now):
            self._begin(found, now)
        wait = self.reporter.report(self._standing(found), now)
        spent = time.monotonic() - now
        wait = min(wait, resident.next_deadline(now), self._agenda.wait(now), _LONGEST_WAIT)
        mirror.wait(max(wait, _LEAST_WAIT))
        time.sleep(spent)  # many events, one look; looking takes half of the time

    def _standing(self, found: Standpoint) -> Standing:
        is_working = self._session is not None or bool(found.needs - self._agenda.undone)
        return self.wish.standing(seen=found.seen, states=found.states, is_working=is_working, halt=self._halt)

    def _begin(self, found: Standpoint, now: float) -> None:
        session = Session(self.inventory)
        session.listen(lambda _: self.wake())
        try:
            if not session.reading().plan.is_empty:
                session.start()
                self._session = session
                return
            self._halt = None
        except ProvisionError as error:
            self._halt = halt_of(error.findings)
        self._agenda.ran(found.needs, now, is_well=self._halt is None)

    def _end(self, found: Standpoint, now: float) -> None:
        """Take the result of a run that has ended."""
        if self._session is None or self._session.is_running:
            return
        self._halt = _result(self._session)
        self._session = None
        self._agenda.ran(found.needs, now, is_well=self._halt is None)

    def _break_off(self) -> None:
        self._mirror = None
        if self._session:
            self._session.cancel()
            _result(self._session)


def _result(session: Session) -> Halt | None:
    """Wait for the end of a run, and return why it did not end as declared."""
    try:
        return halt_of(session.explain())
    except ProvisionError as error:
        return halt_of(error.findings)
