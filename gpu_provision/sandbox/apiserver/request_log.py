"""The log of HTTP requests, one JSON line each. The simulation works in process and is not logged."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

_WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Reviews, which are never stored.
_QUESTIONS = ("subjectaccessreviews", "selfsubjectreviews", "selfsubjectrulesreviews", "tokenreviews", "/token", "/log")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request; ``time`` is UTC in ISO format, ``code`` 0 if the connection was dropped."""

    time: str
    verb: str
    path: str
    query: str
    agent: str
    user: str
    code: int
    dry_run: bool

    @property
    def is_write(self) -> bool:
        """Whether the request could write, regardless of its outcome."""
        return self.verb in _WRITES and not self.dry_run and not self.path.endswith(_QUESTIONS)


class RequestLog:
    """Appends to a file; each line is flushed to the operating system."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending."""
        self._file: TextIO = path.open("a", buffering=1, encoding="utf-8")

    def add(self, request: LoggedRequest) -> None:
        """Write one line."""
        self._file.write(json.dumps(asdict(request), ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def timestamp() -> str:
    """Return the present time in the log's format."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


def requests(path: Path, since: str = "") -> Iterator[LoggedRequest]:
    """Read a log; ``since`` is a `timestamp`. An incomplete last line is skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):  # a reader sees a write across pages of the file in parts
                return
            request = LoggedRequest(**json.loads(line))
            if request.time >= since:
                yield request


def writes(path: Path, since: str = "") -> list[LoggedRequest]:
    """Return the writes of a log: POST, PUT, PATCH, DELETE without dry run."""
    return [request for request in requests(path, since) if request.is_write]
