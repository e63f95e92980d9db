"""Shows what the connection to an API server logs: that a request is repeated, and for how much longer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpu_provision.cli.output import Output

_LOGGER = logging.getLogger("gpu_provision")


class _Reports(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self.show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Show the message alone; a traceback is for the log file."""
        self.show(record.getMessage())


def start(out: Output) -> None:
    """Show reports on stderr from now on; with ``-v`` each request that is repeated, with ``-q`` nothing."""
    for handler in [each for each in _LOGGER.handlers if isinstance(each, _Reports)]:
        _LOGGER.removeHandler(handler)
    _LOGGER.addHandler(_Reports(out.note))
    _LOGGER.setLevel(logging.DEBUG if out.verbose else logging.WARNING)
    _LOGGER.propagate = False


@contextmanager
def shown_by(show: Callable[[str], None]) -> Iterator[None]:
    """Pass reports to ``show``, such as a picture that other lines on the terminal would break."""
    reports = [each for each in _LOGGER.handlers if isinstance(each, _Reports)]
    before = [each.show for each in reports]
    for each in reports:
        each.show = show
    try:
        yield
    finally:
        for each, former in zip(reports, before, strict=True):
            each.show = former
