"""What a simulated program is, and which CUDA version a driver brings."""

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


CUDA_BY_BRANCH = (
    (595, "13.2"),
    (590, "13.1"),
    (580, "13.0"),
    (575, "12.9"),
    (570, "12.8"),
    (565, "12.7"),
    (560, "12.6"),
    (555, "12.5"),
    (550, "12.4"),
    (545, "12.3"),
    (535, "12.2"),
    (530, "12.1"),
    (525, "12.0"),
    (520, "11.8"),
    (515, "11.7"),
    (510, "11.6"),
    (470, "11.4"),
    (450, "11.0"),
)
"""First driver branch of each CUDA version: NVIDIA's CUDA compatibility table; 590 and above as nvidia-smi prints."""


def branch(driver: str) -> int:
    """Return a driver version's first number: 580 for ``580.95.05``."""
    first = driver.split(".", maxsplit=1)[0].split("-", maxsplit=1)[0]
    return int(first) if first.isdigit() else 0


def cuda_version(driver: str) -> str:
    """Return the newest CUDA version that a driver supports."""
    return next((cuda for oldest, cuda in CUDA_BY_BRANCH if branch(driver) >= oldest), "10.2")
