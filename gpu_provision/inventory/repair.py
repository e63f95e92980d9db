"""Guesses the well-formed value behind a malformed one."""

from __future__ import annotations

import re
from collections.abc import Callable

# What people write instead, from the least to the most invasive change.
_GUESSES: tuple[Callable[[str], str], ...] = (
    str.strip,
    str.lower,
    lambda text: re.sub(r"^[a-z]+://", "", text).rstrip("/"),  # https://registry.example.com/
    lambda text: text.rpartition("/")[2].partition(":")[0],  # nvcr.io/nvidia/driver:1.2
    lambda text: text.rpartition("@")[2],  # ubuntu@10.0.0.1
    lambda text: text.rpartition("@")[2].partition(":")[0],  # ubuntu@10.0.0.1:22
    lambda text: re.sub(r"-[a-z]+[0-9.]*$", "", text).removeprefix("v"),  # 595.91.07-ubuntu22.04
    lambda text: re.sub(r"[Bb]$", "", text),  # 1GiB, 512MB
    lambda text: re.sub(r"[\s_-]+", "", text.lower()) if re.search(r"[0-9]\.[0-9]", text) else "",  # Ubuntu 22.04
    lambda text: re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._"),
    lambda text: re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-."),
    lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"),
)


def repaired(value: str, pattern: str) -> str:
    """Return a value like the given one that fits the pattern, or an empty string if no guess does."""
    guesses = (guess(value) for guess in _GUESSES)
    return next((guess for guess in guesses if guess and re.fullmatch(pattern, guess)), "")
