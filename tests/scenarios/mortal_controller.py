"""Runs a controller whose every life ends with SIGKILL right after one of its writes; then the next life begins.

    python -m tests.scenarios.mortal_controller KUBECONFIG DEATHS MOST

Writes of objects, and what a controller writes for itself (leases, its record, the stack's status, Events), are counted
apart. MOST is the number of objects that a life writes at most. What is written once, the finalizer and each Event,
always ends a life, and so does the first write of each of PLACES. The file DEATHS gets a line for each write that was
the last one. Lives are forks of one process, since importing everything takes longer than most of them.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_provision.cli import main, operator
from gpu_provision.kube.client import connect
from gpu_provision.kube.transport import Connection
from gpu_provision.operator import controller
from gpu_provision.operator.stack import inventory_of, stack_of

OWN = re.compile(r"/leases|/events$|/gpustacks/|-history$")
"""Paths of what a controller writes for itself."""

PLACES = ("/leases", "/gpustacks/", "-history", "/nodes/", "/pods", "/daemonsets/", "/clusterroles/")
"""Parts of paths; a life ends at each of them, wherever the counts happen to fall."""

_ONCE = re.compile(r"/gpustacks/[^/]+$|/events$")
_QUESTION = re.compile(r"(access|rules|subject)reviews$")
_MOST_OWN = 7  # as many as come before the first object, and some between objects
_DEATH_OF_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def lives(most: int) -> Iterator[dict[bool, int]]:
    """Yield after how many writes each life ends: of its own, by True, and of objects, by False."""
    objects = itertools.cycle(range(1, most + 1))
    own = itertools.cycle(range(1, _MOST_OWN + 1))
    while True:
        yield {True: sys.maxsize, False: next(objects)}
        yield {True: next(own), False: next(objects)}


def places_to_come(file: Path) -> list[str]:
    last = file.read_text().splitlines()
    return [place for place in PLACES if not any(place in line for line in last)]


def make_mortal(left: dict[bool, int], places: Sequence[str], deaths: int) -> None:
    """Have this process die after so many writes or at one of these places.

    One write is on its way at a time, so that none comes after the last.
    """
    send, alone = Connection._send_once, threading.Lock()

    def once(self: Connection, verb: str, path: str, *arguments: Any, **options: Any) -> Any:
        if verb == "GET" or ("dryRun", "All") in options.get("query", ()) or _QUESTION.search(path):
            return send(self, verb, path, *arguments, **options)
        with alone:
            answer = send(self, verb, path, *arguments, **options)
            is_own = bool(OWN.search(path))
            left[is_own] -= 1
            if left[is_own] == 0 or _ONCE.search(path) or any(place in path for place in places):
                os.write(deaths, f"{verb} {path}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

    Connection._send_once = once  # type: ignore[method-assign]


def live(kubeconfig: str, left: dict[bool, int], places: Sequence[str], deaths: int) -> None:
    ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)
    make_mortal(left, places, deaths)
    code = main(["operator", "run", "--port", "0", "--kubeconfig", kubeconfig])
    os.write(deaths, f"ended by itself with {code}\n".encode())


def run(kubeconfig: str, file: Path, most: int) -> None:
    deaths = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for left in lives(most):
        places = places_to_come(file)
        child = os.fork()
        if child == 0:
            live(kubeconfig, left, places, deaths)
            os._exit(1)
        os.waitpid(child, 0)


def warm_up(kubeconfig: str) -> None:
    assert controller
    assert operator
    connect(kubeconfig)
    inventory_of(stack_of({"name": "any", "cluster": {}, "pools": {}}))


def start(arguments: Sequence[str]) -> None:
    kubeconfig, file, most = arguments
    warm_up(kubeconfig)
    run(kubeconfig, Path(file), int(most))


if __name__ == "__main__":
    start(sys.argv[1:])
