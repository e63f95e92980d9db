"""What every program does as a container's first process: say what happens, end when told to, answer probes."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import NoReturn

Answer = Callable[[], tuple[int, str]]
"""Returns the status and the text of one HTTP answer."""


def say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def end_when_told() -> None:
    """Make SIGTERM and SIGINT end the program as an exception does: the first process has no default handlers."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> NoReturn:
    say(f"received signal {signal.Signals(number).name}, shutting down")
    raise SystemExit(0)


def stay() -> NoReturn:
    while True:
        signal.pause()


def until(condition: Callable[[], bool], waiting: str, pause: float = 5.0) -> None:
    """Wait until a condition holds, and say each time that it does not."""
    while not condition():
        say(waiting)
        time.sleep(pause)


def flags(arguments: Sequence[str]) -> dict[str, str]:
    """Return command line flags as Go's flag package reads them; one without a value is ``true``."""
    pairs = (argument.lstrip("-").partition("=") for argument in arguments if argument.startswith("-"))
    return {name: value if equals else "true" for name, equals, value in pairs}


def seconds(duration: str) -> float:
    """Return the seconds of a duration such as ``60s``, ``5m`` or ``1h``."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    return float(duration.rstrip("smh")) * units.get(duration[-1:], 1.0)


def serve(port: int, answers: dict[str, Answer]) -> None:
    """Answer GET requests for these paths in the background, on every address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers.get(self.path.partition("?")[0], lambda: (404, "not found\n"))()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Keep probes out of the log."""

    server = ThreadingHTTPServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
