"""For how long an API server has not answered, over all threads that ask it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_provision.cluster.errors import Place, translated
from gpu_provision.model.findings import ProvisionError, Refused, Unreachable

SETTLING_SECONDS = 10.0
"""For how long after a silence a refusal may pass: an API server that starts knows nobody's rights for a moment."""


class Silence:
    """What all requests to one API server have met last."""

    def __init__(self) -> None:
        """Begin with a server of which nothing is known."""
        self._began: float | None = None
        self._last = float("-inf")

    @property
    def seconds(self) -> float:
        """For how long nothing has been answered; 0 if the last request was."""
        began = self._began
        return time.monotonic() - began if began is not None else 0.0

    @contextmanager
    def noted(self, place: Place) -> Iterator[None]:
        """Turn what the client library raises into this project's errors, and note whether the server answers.

        A refusal right after a silence is part of the silence.
        """
        try:
            with translated(place):
                yield
        except Unreachable:
            self._note()
            raise
        except Refused as error:
            self._began = None
            if time.monotonic() - self._last < SETTLING_SECONDS:
                raise Unreachable(*error.findings) from error
            raise
        except ProvisionError:
            self._began = None
            raise
        self._began = None

    def _note(self) -> None:
        self._last = time.monotonic()
        if self._began is None:
            self._began = self._last
