"""What a simulated program is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpu_provision.sandbox.nodes.container import Container


def _nothing(_: Container) -> None:
    """Leave no trace."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A simulated program.

    Attributes:
        run: Plays the program; returns its exit code, or runs until the container ends.
        stopped: What becomes of the machine when the program ends, by itself or not; it may have done nothing yet.
        exit_code: How it ends when it is asked to.
    """

    run: Callable[[Container], Awaitable[int]]
    stopped: Callable[[Container], None] = _nothing
    exit_code: int = 0
