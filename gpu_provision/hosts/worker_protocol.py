"""Talks with the worker: a request, then its events, its questions about nodes and our answers, and its result.

Messages are lines of JSON. A question is ``{"ask": {"number", "what", "node", ...}}``, its answer
``{"number", "answer"}`` or ``{"number", "errors"}``; gpu_provision.hosts.worker_protocol is the other end.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gpu_provision.hosts import codes
from gpu_provision.hosts.maintenance import (
    Guard,
    Say,
)
from gpu_provision.model.findings import Finding, ProvisionError, Severity
from gpu_provision.model.hosts import Drain

Plain = dict[str, Any]
Tell = Callable[[Plain], None]


class Conversation:
    """One worker's. Questions are answered in threads of their own; events are told by whoever calls `result`."""

    def __init__(self, process: subprocess.Popen[str], guard: Guard | None) -> None:
        """Begin to listen."""
        assert process.stdin and process.stdout  # noqa: S101, PT018 - both are pipes; for the type checker
        self._to, self._from, self._guard = process.stdin, process.stdout, guard
        self._heard: queue.SimpleQueue[Plain | None] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._answers: list[threading.Thread] = []

    def result(self, request: Plain, tell: Tell) -> Plain | None:
        """Send the request and return the worker's result; None if it ends without one.

        Args:
            tell: Called with everything else that is said; ``event`` names a host as pyinfra does, or a node.
        """
        self._send(request)
        threading.Thread(target=self._listen, name="worker", daemon=True).start()
        result: Plain | None = None
        while (message := self._heard.get()) is not None:
            if "ask" in message:
                self._begin_to_answer(message["ask"])
            elif "result" in message:
                result = message["result"]
            else:
                tell(message)
        return result

    def end(self, seconds: float) -> None:
        """Wait until all questions are answered, or for so long."""
        for thread in self._answers:
            thread.join(seconds)

    def _listen(self) -> None:
        with contextlib.suppress(ValueError):  # it was closed
            for line in self._from:
                self._heard.put(json.loads(line))
        self._heard.put(None)

    def _send(self, message: Plain) -> None:
        with self._writing, contextlib.suppress(BrokenPipeError):  # it is gone: its status says why
            self._to.write(f"{json.dumps(message)}\n")
            self._to.flush()

    def _begin_to_answer(self, ask: Plain) -> None:
        thread = threading.Thread(target=self._answer, args=(ask,), name=f"guard of {ask['node']}", daemon=True)
        self._answers.append(thread)
        thread.start()

    def _answer(self, ask: Plain) -> None:
        def say(message: str) -> None:
            self._heard.put({"event": {"node": ask["node"], "message": message}})

        assert self._guard  # noqa: S101 - without one nobody asks
        told: Plain = {"errors": [asdict(_broke_down(ask))]}
        try:
            told = {"answer": answer(self._guard, ask, say)}
        except ProvisionError as error:
            told = {"errors": [asdict(finding) for finding in error.findings]}
        finally:
            self._send({"number": ask["number"], **told})


def _broke_down(ask: Plain) -> Finding:
    """Return the error for a mistake of ours, whose traceback the thread prints."""
    return Finding(
        code=codes.ENDED_EARLY, what=f"the guard broke down ({ask['what']})", where=ask["node"], fix="please report it"
    )


def answer(guard: Guard, ask: Plain, say: Say) -> Plain:
    """Return a guard's answer to a question. Raises what the guard raises."""
    node, drain = ask["node"], Drain(**ask.get("drain", {}))
    match ask["what"]:
        case "standing":
            return asdict(guard.standing(node))
        case "farewell":
            return asdict(guard.farewell(node, drain))
        case "leave":
            return {"pods": guard.leave(node, drain, say)}
        case _:
            guard.back(node, ask["boot_id"], ask["seconds"], say)
            return {}


def finding_of(told: Plain) -> Finding:
    """Return a finding from its plain form."""
    return Finding(**{**told, "severity": Severity(told["severity"])})
