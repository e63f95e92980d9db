"""Reboots hosts that need it and waits until each is another boot, and its node is ready again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import gevent
from pyinfra.api.command import FunctionCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import clear_askpass_cache
from pyinfra.context import host, state

from gpu_provision.hosts import errors
from gpu_provision.hosts.errors import unreadable_host
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.messages import HostMembership, Maintenance, NodeRole
from gpu_provision.hosts.operations import (
    Commands,
    host_operation,
    read_host,
    record_changes,
    report_findings,
    require_host,
    run_of,
)
from gpu_provision.hosts.result import REBOOTED
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, ProvisionError, RunFailedError, one_line
from gpu_provision.model.hosts import Drain
from gpu_provision.model.text import join_limited
from gpu_provision.planning.drain_rules import MAX_NAMED

_SECTIONS = ("system", "kernel", "modules", "kubernetes")
_PAUSE_SECONDS = 2
_GOODBYE_SECONDS = 30
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class BootId(FactBase[str]):
    """What changes with every boot of a machine; empty without an answer."""

    default = staticmethod(str)

    def command(self) -> str:
        """Return the shell command."""
        return f"cat {_BOOT_ID}"

    def process(self, output: list[str]) -> str:
        """Read the command's output."""
        return output[0].strip() if output else ""


class RebootCommand(BootId):
    """What a machine answers to its reboot command; most answer nothing, or are gone before."""

    def command(self) -> str:
        """Return the shell command."""
        return "PATH=$PATH:/usr/sbin:/sbin; reboot 2>&1 || :"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RebootAttempt:
    """One machine's way through its reboot."""

    node: str
    reasons: tuple[str, ...]  # why; empty if all that is left is to finish what an earlier run began
    maintenance: Maintenance | None  # none if the machine is no node of a cluster
    drain: Drain
    max_parallel: int
    seconds: int
    nouveau_unwanted: bool


@host_operation
def reboot_if_needed(
    nouveau_unwanted: bool = True,  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    max_parallel: int = 1,
    patience: int = 900,
    drain: Mapping[str, Any] | None = None,
) -> Commands:
    """Reboot a host that needs it, and wait until it is back.

    A node of the inventory's cluster is cordoned and drained before, and uncordoned when it is ready again, unless
    it was cordoned before. The next run resumes one that was killed in between. If one host does not come
    back within ``patience`` seconds, or cannot be drained, the others are not rebooted. The machine that this runs on
    and those of the control plane never are.
    """
    record = require_host(_SECTIONS)
    maintenance = run_of(host).maintenance
    reasons = _reasons(host, record, nouveau_unwanted=nouveau_unwanted)
    membership = maintenance.membership(_node()) if maintenance and (reasons or record.kubernetes.running) else None
    if not reasons and not (membership and membership.left_cordoned):
        host.noop("no reboot is needed")
        return
    kept = run_of(host).findings
    kept[:] = [finding for finding in kept if finding.code != codes.REBOOT_NEEDED]  # it is seen to below
    if reasons:
        own_boot_id = "unknown"
        with contextlib.suppress(OSError):  # no Linux, or not readable by this user
            own_boot_id = Path(_BOOT_ID).read_text(encoding="ascii").strip()
        here = host.name.startswith("@local") or host.get_fact(BootId) == own_boot_id
        if refused := refusal(_node(), membership, reasons=reasons, kubelet=record.kubernetes.running, here=here):
            raise RunFailedError(refused)
    attempt = _RebootAttempt(
        node=_node(),
        reasons=reasons,
        maintenance=maintenance if membership and membership.role is NodeRole.MEMBER else None,
        drain=Drain(**(drain or {})),
        max_parallel=max_parallel,
        seconds=patience,
        nouveau_unwanted=nouveau_unwanted,
    )
    if state.is_executing:
        RebootSlots.for_run(state).request(host)
    else:
        _preview(attempt)
    yield FunctionCommand(_reboot_in_slot, (attempt,), {})


def _preview(attempt: _RebootAttempt) -> None:
    """Say what would happen; refuse where the node could not be drained."""
    pods: tuple[str, ...] = ()
    if attempt.maintenance and attempt.reasons:
        preview = attempt.maintenance.preview_drain(attempt.node, attempt.drain)
        if preview.refusal:
            raise RunFailedError(preview.refusal)
        pods = preview.pods
    words = describe(attempt.reasons, pods)
    record_changes(words)
    host.log(f"Will be {'; '.join(words)}")


def _reboot_in_slot(state: State, host: Host, attempt: _RebootAttempt) -> bool:
    """Wait for a slot and reboot; if that fails, no further host is rebooted."""
    slots = RebootSlots.for_run(state)
    with slots.acquire(state, host, most=attempt.max_parallel) as goes:
        if not goes:
            why = "; ".join(attempt.reasons)
            return report_findings(
                state, host, errors.finding("reboot.stopped", attempt.node, why, failed=slots.failed_host)
            )
        try:
            _reboot_node(host, attempt)
        except ProvisionError as error:
            # pods that would be lost are a reason of one node alone
            if any(finding.code != codes.PODS_WOULD_BE_LOST for finding in error.findings):
                slots.stop(attempt.node)
            return report_findings(state, host, *error.findings)
    return True


def _reboot_node(host: Host, attempt: _RebootAttempt) -> None:
    """Reboot if there is a reason, and see that everything is back. Raises ProvisionError."""
    listener = run_of(host).on_progress

    def report(message: str) -> None:
        if listener:
            listener(message)
        else:
            host.log(one_line(message))

    boot = ""
    pods: tuple[str, ...] = ()
    if attempt.reasons:
        pods = attempt.maintenance.cordon_and_drain(attempt.node, attempt.drain, report) if attempt.maintenance else ()
        report("rebooting")
        boot = _reboot(host, attempt)
    if attempt.maintenance:
        attempt.maintenance.wait_and_uncordon(attempt.node, boot or host.get_fact(BootId), attempt.seconds, report)
    record_changes(describe(attempt.reasons, pods))
    if not attempt.reasons:
        return
    run_of(host).reboot_reasons.clear()
    record = read_host(_SECTIONS)
    reasons = _reasons(host, record, nouveau_unwanted=attempt.nouveau_unwanted) if record else ()
    if reasons:
        raise RunFailedError(errors.finding("reboot.no_effect", attempt.node, "; ".join(reasons)))


def _reboot(host: Host, attempt: _RebootAttempt) -> str:
    """Return the new boot id. Raises RunFailedError if none comes in time."""
    before = host.get_fact(BootId)
    if not before:
        raise RunFailedError(unreadable_host(attempt.node))
    told = tuple(run_of(host).findings)
    said = _start_reboot(host)
    give_up = time.monotonic() + attempt.seconds
    while time.monotonic() < give_up:
        now = _boot_id(host)
        run_of(host).findings[:] = told  # that it does not answer meanwhile is nothing to tell
        if now not in {"", before}:
            return now
        time.sleep(_PAUSE_SECONDS)
    stays = "its node stays cordoned, and " if attempt.maintenance else ""
    words = {"seconds": attempt.seconds, "stays": stays}
    raise RunFailedError(errors.finding("reboot.not_back", attempt.node, said, **words))


def _start_reboot(host: Host) -> str:
    """Return what the machine answers; one that is gone at once, or never hangs up, answers nothing."""
    said = ""
    with gevent.Timeout(_GOODBYE_SECONDS, exception=False), contextlib.suppress(PyinfraError, OSError):
        said = host.get_fact(RebootCommand, _ignore_errors=True)
    clear_askpass_cache(host)  # what is kept there goes with the machine
    _disconnect(host)
    return said


def _boot_id(host: Host) -> str:
    """Return the boot id; empty while the host does not answer, and the connection is then a new one."""
    found = ""
    with contextlib.suppress(PyinfraError, OSError):
        if not host.connected:
            host.connect(show_errors=False)
        found = host.get_fact(BootId, _ignore_errors=True) if host.connected else ""
    if not found:
        _disconnect(host)
    return found


def _disconnect(host: Host) -> None:
    with contextlib.suppress(PyinfraError, ProvisionError, OSError):
        host.disconnect()
    host.connected = False


def _reasons(host: Host, record: HostFacts, *, nouveau_unwanted: bool) -> tuple[str, ...]:
    return (*reboot_reasons(record, nouveau_unwanted=nouveau_unwanted), *run_of(host).reboot_reasons)


def _node() -> str:
    return str(host.data.get("gpu_node") or host.name)


_LOOK_SECONDS = 0.5  # a host that finishes another operation does not notify

_SLOTS: WeakKeyDictionary[State, RebootSlots] = WeakKeyDictionary()


@dataclass(slots=True)
class RebootSlots:
    """The slots of one run of pyinfra's: so many hosts at a time, in the inventory's order, none after a failure."""

    failed_host: str = ""  # the host whose absence did not end well; empty for none
    _requests: dict[str, bool] = field(default_factory=dict)
    _rebooting: set[str] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @staticmethod
    def for_run(state: State) -> RebootSlots:
        """Return the slots that all hosts of a run share."""
        return _SLOTS.setdefault(state, RebootSlots())

    def request(self, host: Host) -> None:
        """Tell that a host wants a turn; those that come after it in the inventory wait for that."""
        with self._changed:
            self._requests[host.name] = True
            self._changed.notify_all()

    @contextmanager
    def acquire(self, state: State, host: Host, *, most: int) -> Iterator[bool]:
        """Wait for a turn, so that at most so many hosts are away; False where there will be none after a failure."""
        with self._changed:
            while not self.failed_host and (len(self._rebooting) >= most or self._must_wait(state, host)):
                self._changed.wait(_LOOK_SECONDS)
            goes = not self.failed_host
            self._requests[host.name] = False
            self._rebooting |= {host.name} if goes else set()
            self._changed.notify_all()
        try:
            yield goes
        finally:
            with self._changed:
                self._rebooting.discard(host.name)
                self._changed.notify_all()

    def stop(self, name: str) -> None:
        """Let no host have its turn after the one that is named."""
        with self._changed:
            self.failed_host = self.failed_host or name
            self._changed.notify_all()

    def _must_wait(self, state: State, host: Host) -> bool:
        """Whether a host that comes before in the inventory wants its turn, or is just finding out."""
        before = takewhile(lambda other: other.name != host.name, state.inventory)
        at_it = (other for other in before if other.executing_op_hash == host.executing_op_hash)
        return any(self._requests.get(other.name, True) for other in at_it)


def reboot_reasons(record: HostFacts, *, nouveau_unwanted: bool = True) -> tuple[str, ...]:
    """Return why this host needs a reboot, each in a few words; empty if it does not."""
    reasons = []
    used = [name for name, users in record.modules.in_tree_drivers.items() if users != 0]
    if nouveau_unwanted and used:
        reasons.append(f"{used[0]} is loaded and in use; it stays away from the next boot on")
    if record.system.reboot_required:
        reasons.append("the system itself asks for one (/run/reboot-required)")
    return tuple(reasons)


def reboot_needed(host: str, reasons: Sequence[str]) -> Finding:
    """Return the warning about a host that needs a reboot."""
    return errors.finding("reboot.needed", host, reasons="; ".join(reasons))


def refusal(
    node: str, membership: HostMembership | None, *, reasons: Sequence[str], kubelet: bool, here: bool
) -> Finding | None:
    """Return why this run does not reboot a host that needs it, such as one that a kubelet runs on; None if it does.

    Without an inventory file it is not known what it is to the cluster. ``here`` is the machine that runs this.
    """
    role = membership.role if membership else None
    unknown = membership.unknown_reason if membership else ""
    on_kubelet = {
        None: "no inventory says of which cluster",
        NodeRole.NOT_A_NODE: "the inventory's cluster has no node of its name",
        NodeRole.UNKNOWN: f"the cluster could not be asked to drain its node: {unknown}",
    }
    if here:
        obstacle = "it is the machine that this runs on"
    elif role is NodeRole.CONTROL_PLANE:
        obstacle = "its node belongs to the control plane"
    elif role in on_kubelet and kubelet:  # a member of the cluster alone can be drained
        obstacle = f"a kubelet runs on it, and {on_kubelet[role]}"
    else:
        return None
    return errors.finding("reboot.refused", node, "; ".join(reasons), obstacle=obstacle)


def describe(reasons: Sequence[str], pods: Sequence[str]) -> tuple[str, ...]:
    """Return the change in words: the reboot and what is evicted before, or the end of an earlier run's."""
    if not reasons:
        return ("uncordoned: an earlier run had cordoned the node for a reboot",)
    evicted = (f"evicted: {join_limited(pods, MAX_NAMED)}",) if pods else ()
    return (f"{REBOOTED}{'; '.join(reasons)}", *evicted)
