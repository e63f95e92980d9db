"""Reads what ``nvidia-smi mig -lgip`` prints."""

from __future__ import annotations

import re

_ROW = re.compile(r"^\|\s+\d+\s+MIG (\S+)\s+\d+\s+\d+/(\d+)\s", re.MULTILINE)


def instance_profiles(text: str) -> dict[str, int]:
    """Return the largest number of instances on the first GPU, by profile."""
    rows = _ROW.findall(text)
    return {profile: int(total) for profile, total in reversed(rows)}
