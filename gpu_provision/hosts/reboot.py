"""Reboots hosts that need it and waits until each is another boot, and its node is ready again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import gevent
from pyinfra.api.command import FunctionCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.connectors.util import clear_askpass_cache
from pyinfra.context import host, state

from gpu_provision.hosts import reboot_rules
from gpu_provision.hosts.changes import modules
from gpu_provision.hosts.codes import REBOOT_NEEDED
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.findings import (
    FINDINGS,
    REBOOT_REASONS,
    Commands,
    note,
    refuse,
    report,
    say,
    withdraw,
)
from gpu_provision.hosts.gpu_host import read
from gpu_provision.hosts.maintenance import (
    GUARD,
    Guard,
    Place,
    Standing,
)
from gpu_provision.model.findings import Finding, ProvisionError, RunFailed
from gpu_provision.model.hosts import Drain
from gpu_provision.planning.codes import PODS_WOULD_BE_LOST

_SECTIONS = ("system", "kernel", "modules", "kubernetes")
_PAUSE_SECONDS = 2
_GOODBYE_SECONDS = 30
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class BootId(FactBase[str]):
    """What changes with every boot of a machine; empty without an answer."""

    def command(self) -> str:
        """Return the shell command."""
        return f"cat {_BOOT_ID}"

    @staticmethod
    def default() -> str:
        """Return an empty string: nothing is known."""
        return ""

    def process(self, output: list[str]) -> str:
        """Read the command's output."""
        return output[0].strip() if output else ""


class Reboot(BootId):
    """What a machine says when it is told to reboot; most say nothing, or are gone before."""

    def command(self) -> str:
        """Return the shell command."""
        return "PATH=$PATH:/usr/sbin:/sbin; reboot 2>&1 || :"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trip:
    """One machine's way through its reboot.

    Attributes:
        guard: None if the machine is no node of a cluster.
        reasons: Why; empty if all that is left is to finish what an earlier run began.
    """

    node: str
    reasons: tuple[str, ...]
    guard: Guard | None
    drain: Drain
    most: int
    seconds: int
    nouveau_unwanted: bool


@operation()
def rebooted(
    nouveau_unwanted: bool = True,  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    max_parallel: int = 1,
    patience: int = 900,
    drain: Mapping[str, Any] | None = None,
) -> Commands:
    """Reboot a host that needs it, and wait until it is back.

    A node of the inventory's cluster is cordoned and drained before, and uncordoned when it is ready again, unless
    somebody else had cordoned it. Where a run was killed in between, the next one goes on. If one host does not come
    back, or cannot be drained, the others are not rebooted. The machine that this runs on and those of the control
    plane never are.

    Args:
        nouveau_unwanted: Whether a nouveau in use is a reason.
        max_parallel: How many hosts may be away at a time, this one among them.
        patience: Seconds that the machine, and then its node, may take to come back.
        drain: The fields of gpu_provision.model.hosts.Drain.
    """
    record = read(_SECTIONS)
    if record is None:
        yield from refuse(modules.unreadable(host.name))
        return
    guard: Guard | None = host.connector_data.get(GUARD)
    reasons = _reasons(host, record, nouveau_unwanted=nouveau_unwanted)
    standing = guard.standing(_node()) if guard and (reasons or record.kubernetes.running) else None
    if not reasons and not (standing and standing.left_cordoned):
        host.noop("no reboot is needed")
        return
    withdraw(REBOOT_NEEDED)
    refusal = _refusal(record, reasons, standing) if reasons else None
    if refusal:
        yield from refuse(refusal)
        return
    trip = _Trip(
        node=_node(),
        reasons=reasons,
        guard=guard if standing and standing.place is Place.MEMBER else None,
        drain=Drain(**(drain or {})),
        most=max_parallel,
        seconds=patience,
        nouveau_unwanted=nouveau_unwanted,
    )
    yield from _commands(trip)


def _commands(trip: _Trip) -> Commands:
    if state.is_executing:
        Turns.of(state).announce(host, wants=True)
    else:
        yield from _look(trip)
    yield FunctionCommand(_take_turn, (trip,), {})


def _look(trip: _Trip) -> Commands:
    """Say what would happen; refuse where the node could not be drained."""
    pods: tuple[str, ...] = ()
    if trip.guard and trip.reasons:
        try:
            farewell = trip.guard.farewell(trip.node, trip.drain)
        except ProvisionError as error:
            yield from refuse(*error.findings)
            return
        if farewell.refusal:
            yield from refuse(farewell.refusal)
        pods = farewell.pods
    words = reboot_rules.words(trip.reasons, pods)
    note(words)
    host.log(f"Will be {'; '.join(words)}")


def _take_turn(state: State, host: Host, trip: _Trip) -> bool:
    """Wait for our turn, and go; if that goes wrong, nobody goes after us."""
    turns = Turns.of(state)
    with turns.taken(state, host, most=trip.most) as goes:
        if not goes:
            return report(state, host, reboot_rules.stopped(trip.node, turns.went_wrong, trip.reasons))
        try:
            _go(host, trip)
        except ProvisionError as error:
            if any(finding.code != PODS_WOULD_BE_LOST for finding in error.findings):  # those are of one node alone
                turns.stop(trip.node)
            return report(state, host, *error.findings)
    return True


def _go(host: Host, trip: _Trip) -> None:
    """Reboot if there is a reason, and see that everything is back. Raises ProvisionError."""
    tell = partial(say, host)
    boot = ""
    pods: tuple[str, ...] = ()
    if trip.reasons:
        pods = trip.guard.leave(trip.node, trip.drain, tell) if trip.guard else ()
        tell("rebooting")
        boot = _reboot(host, trip)
    if trip.guard:
        trip.guard.back(trip.node, boot or host.get_fact(BootId), trip.seconds, tell)
    note(reboot_rules.words(trip.reasons, pods))
    if trip.reasons:
        _see_that_it_helped(host, trip)


def _reboot(host: Host, trip: _Trip) -> str:
    """Return the new boot id. Raises RunFailed if none comes in time."""
    before = host.get_fact(BootId)
    if not before:
        raise RunFailed(modules.unreadable(trip.node))
    told = tuple(host.connector_data.get(FINDINGS, ()))
    said = _tell_to_reboot(host)
    give_up = time.monotonic() + trip.seconds
    while time.monotonic() < give_up:
        now = _boot_id(host)
        host.connector_data[FINDINGS] = list(told)  # that it does not answer meanwhile is nothing to tell
        if now not in {"", before}:
            return now
        time.sleep(_PAUSE_SECONDS)
    raise RunFailed(reboot_rules.not_back(trip.node, trip.seconds, said=said, is_node=trip.guard is not None))


def _tell_to_reboot(host: Host) -> str:
    """Return what the machine answers; one that is gone at once, or never hangs up, answers nothing."""
    said = ""
    with gevent.Timeout(_GOODBYE_SECONDS, exception=False), contextlib.suppress(PyinfraError, OSError):
        said = host.get_fact(Reboot, _ignore_errors=True)
    clear_askpass_cache(host)  # what is kept there goes with the machine
    _hang_up(host)
    return said


def _boot_id(host: Host) -> str:
    """Return the boot id; empty while nobody answers, and the connection is then a new one."""
    found = ""
    with contextlib.suppress(PyinfraError, OSError):
        if not host.connected:
            host.connect(show_errors=False)
        found = host.get_fact(BootId, _ignore_errors=True) if host.connected else ""
    if not found:
        _hang_up(host)
    return found


def _hang_up(host: Host) -> None:
    with contextlib.suppress(PyinfraError, ProvisionError, OSError):
        host.disconnect()
    host.connected = False


def _see_that_it_helped(host: Host, trip: _Trip) -> None:
    host.connector_data.pop(REBOOT_REASONS, None)
    record = read(_SECTIONS)
    reasons = _reasons(host, record, nouveau_unwanted=trip.nouveau_unwanted) if record else ()
    if reasons:
        raise RunFailed(reboot_rules.in_vain(trip.node, reasons))


def _reasons(host: Host, record: HostRecord, *, nouveau_unwanted: bool) -> tuple[str, ...]:
    told = host.connector_data.get(REBOOT_REASONS, ())
    return (*modules.reboot_reasons(record, nouveau_unwanted=nouveau_unwanted), *told)


def _refusal(record: HostRecord, reasons: tuple[str, ...], standing: Standing | None) -> Finding | None:
    here = host.name.startswith("@local") or host.get_fact(BootId) == _own_boot_id()
    return reboot_rules.refusal(_node(), standing, reasons=reasons, kubelet=record.kubernetes.running, here=here)


def _own_boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path(_BOOT_ID).read_text(encoding="ascii").strip()
    return "unknown"


def _node() -> str:
    return str(host.data.get("gpu_node") or host.name)


_LOOK_SECONDS = 0.5  # a host that is done with something else tells nobody

_of_states: WeakKeyDictionary[State, Turns] = WeakKeyDictionary()


@dataclass(slots=True)
class Turns:
    """The turns of one run of pyinfra's.

    Attributes:
        went_wrong: The host whose absence did not end well; empty for none.
    """

    went_wrong: str = ""
    _wants: dict[str, bool] = field(default_factory=dict)
    _away: set[str] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @staticmethod
    def of(state: State) -> Turns:
        """Return the turns that all hosts of a run share."""
        return _of_states.setdefault(state, Turns())

    def announce(self, host: Host, *, wants: bool) -> None:
        """Say whether a host wants a turn; those that come after it in the inventory wait for that."""
        with self._changed:
            self._wants[host.name] = wants
            self._changed.notify_all()

    @contextmanager
    def taken(self, state: State, host: Host, *, most: int) -> Iterator[bool]:
        """Wait for a turn; False where there will be none, since something went wrong.

        Args:
            most: How many hosts may be away then, this one among them.
        """
        with self._changed:
            while not self.went_wrong and (len(self._away) >= most or self._is_early(state, host)):
                self._changed.wait(_LOOK_SECONDS)
            goes = not self.went_wrong
            self._wants[host.name] = False
            self._away |= {host.name} if goes else set()
            self._changed.notify_all()
        try:
            yield goes
        finally:
            with self._changed:
                self._away.discard(host.name)
                self._changed.notify_all()

    def stop(self, name: str) -> None:
        """Let no host have its turn after the one that is named."""
        with self._changed:
            self.went_wrong = self.went_wrong or name
            self._changed.notify_all()

    def _is_early(self, state: State, host: Host) -> bool:
        """Whether a host that comes before in the inventory wants its turn, or is just finding out."""
        for other in state.inventory:
            if other.name == host.name:
                return False
            same = other.executing_op_hash == host.executing_op_hash
            if same and self._wants.get(other.name, True):
                return True
        return False
