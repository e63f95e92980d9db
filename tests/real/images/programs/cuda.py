"""The vectorAdd sample: prints the sample's own lines, and fails as it does without driver or device."""

from __future__ import annotations

import sys
from pathlib import Path

from . import gpus
from .process import say

_FAILED = "Failed to allocate device vector A (error code {})!\n"


def main() -> int:
    """Add vectors; return 1 if no GPU is there to add them."""
    say("[Vector addition of 50000 elements]")
    if problem := _problem():
        sys.stderr.write(_FAILED.format(problem))
        return 1
    say(
        "Copy input data from the host memory to the CUDA device",
        "CUDA kernel launch with 196 blocks of 256 threads",
        "Copy output data from the CUDA device to the host memory",
        "Test PASSED",
        "Done",
    )
    return 0


def _problem() -> str:
    if not Path("/", gpus.CUDA).exists():
        return "CUDA driver version is insufficient for CUDA runtime version"
    try:
        _, usable = gpus.usable()
    except gpus.NoDriver:
        usable = []
    return "" if usable else "no CUDA-capable device is detected"
