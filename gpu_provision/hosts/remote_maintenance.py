"""Maintenance of nodes for a process without a Kubernetes client: it asks its parent process in lines of JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from gevent.event import AsyncResult

from gpu_provision.hosts.codes import ENDED_EARLY
from gpu_provision.hosts.maintenance import (
    Farewell,
    Place,
    Say,
    Standing,
)
from gpu_provision.hosts.worker_protocol import Plain, finding_of
from gpu_provision.model.findings import Finding, RunFailed
from gpu_provision.model.hosts import Drain

_DESERTED: Plain = {"errors": [asdict(Finding(code=ENDED_EARLY, what="whoever ran the host phase is gone"))]}


class AskingGuard:
    """A Guard whose every word comes from elsewhere."""

    def __init__(self, emit: Callable[[Plain], None]) -> None:
        """Keep the function that sends a message."""
        self._emit = emit
        self._numbers = itertools.count()
        self._open: dict[int, AsyncResult[Plain]] = {}
        self._deserted = False

    def hear(self, lines: Iterable[str]) -> None:
        """Take answers until there are no more: whoever gave them is gone then, and all questions have failed."""
        for message in map(json.loads, lines):
            self._open.pop(message["number"]).set(message)
        self._deserted = True
        for answer in self._open.values():
            answer.set(_DESERTED)

    def standing(self, node: str) -> Standing:
        """Ask for what a node is."""
        told = self._ask("standing", node)
        return Standing(**{**told, "place": Place(told["place"])})

    def farewell(self, node: str, drain: Drain) -> Farewell:
        """Ask for what a drain would do."""
        told = self._ask("farewell", node, drain=asdict(drain))
        refusal = told["refusal"] and finding_of(told["refusal"])
        return Farewell(pods=tuple(told["pods"]), refusal=refusal)

    def leave(self, node: str, drain: Drain, say: Say) -> tuple[str, ...]:  # noqa: ARG002 - the other side says it
        """Have a node cordoned and drained."""
        return tuple(self._ask("leave", node, drain=asdict(drain))["pods"])

    def back(self, node: str, boot_id: str, seconds: int, say: Say) -> None:  # noqa: ARG002 - as above
        """Have a node awaited and uncordoned."""
        self._ask("back", node, boot_id=boot_id, seconds=seconds)

    def _ask(self, what: str, node: str, **more: Any) -> Plain:
        number = next(self._numbers)
        answer = self._open[number] = AsyncResult()
        self._emit({"ask": {"number": number, "what": what, "node": node, **more}})
        message = _DESERTED if self._deserted else answer.get()
        if "errors" in message:
            raise RunFailed(*map(finding_of, message["errors"]))
        told: Plain = message["answer"]
        return told
