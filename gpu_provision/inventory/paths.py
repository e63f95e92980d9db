"""Paths in an inventory: relative ones begin at the file, a tilde at the user's home."""

from __future__ import annotations

import os.path
from pathlib import Path


def absolute(text: str, base: Path) -> str:
    """Return the path in full; an empty one stays empty."""
    return os.path.normpath(base / home(text)) if text else ""


def home(text: str) -> Path:
    """Return the path with its tilde expanded; one of an unknown user stays as it is, instead of raising."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  Path.expanduser raises RuntimeError for those


def fleet(text: str, base: Path) -> str:
    """Return a sandbox fleet: a name as it is, the path of a fleet file in full."""
    return absolute(text, base) if "/" in text or text.endswith((".yaml", ".yml")) else text
