"""The vectorAdd sample: prints the sample's own lines, and fails as it does without driver or device."""

from __future__ import annotations

import sys
from pathlib import Path

from gpu_provision.sandbox.operand_rules import NO_DEVICE, VECTOR_ADD_FAILED, VECTOR_ADD_LINES

from . import gpus
from .process import say


def main() -> int:
    say(VECTOR_ADD_LINES[0])
    if problem := _problem():
        sys.stderr.write(f"{VECTOR_ADD_FAILED.format(problem)}\n")
        return 1
    say(*VECTOR_ADD_LINES[1:])
    return 0


def _problem() -> str:
    if not Path("/", gpus.CUDA).exists():
        return "CUDA driver version is insufficient for CUDA runtime version"
    try:
        _, usable = gpus.usable()
    except gpus.NoDriver:
        usable = []
    return "" if usable else NO_DEVICE
