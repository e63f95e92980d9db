"""Ctrl-C while operations wait for a cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event

from gpu_provision.deploys.cluster import report_unfinished
from gpu_provision.model.findings import Finding, attach_findings

STAYS = Finding(code="GP517", what="t4-1 stays cordoned")


@pytest.fixture
def ended() -> Iterator[list[int]]:
    """What pyinfra's own handler was called with: here it does not end the process."""
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: calls.append(number))
    yield calls
    signal.signal(signal.SIGINT, before)


def waits(told: list[str], waiting: Event, *, over: Event) -> None:
    """Wait for a run as a session does: an interrupt leaves with what the run leaves half done."""
    with report_unfinished(told.append):
        try:
            waiting.set()
            over.wait()
        except KeyboardInterrupt as interrupt:
            attach_findings(interrupt, STAYS)
            raise


def test_an_interrupt_reports_nodes_before_pyinfra_ends(ended: list[int]) -> None:
    told: list[str] = []
    waiting = Event()
    operation = gevent.spawn(waits, told, waiting, over=Event())
    waiting.wait()
    os.kill(os.getpid(), signal.SIGINT)
    operation.get()
    assert (told, ended) == ([str(STAYS)], [signal.SIGINT])
    os.kill(os.getpid(), signal.SIGINT)
    assert (told, len(ended)) == ([str(STAYS)], 2)


def test_the_second_interrupt_ends_at_once(ended: list[int]) -> None:
    waiting, over = Event(), Event()
    operation = gevent.spawn(waits, [], waiting, over=over)
    waiting.wait()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
    assert ended == [signal.SIGINT]
    operation.get()


def test_pyinfra_has_its_handler_back_when_no_run_is_awaited(ended: list[int]) -> None:
    events = [Event() for _ in range(4)]
    operations = [gevent.spawn(waits, [], waiting, over=over) for waiting, over in (events[:2], events[2:])]
    for waiting in events[::2]:
        waiting.wait()
    for over, operation in zip(events[1::2], operations, strict=True):
        over.set()
        operation.get()
    os.kill(os.getpid(), signal.SIGINT)
    assert ended == [signal.SIGINT]


def test_without_pyinfras_command_no_handler_is_installed() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with report_unfinished(print):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)
