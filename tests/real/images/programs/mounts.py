"""Mounting, as the driver container does it."""

from __future__ import annotations

import ctypes
import os

BIND, RECURSIVE, UNBINDABLE = 1 << 12, 1 << 14, 1 << 17
_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, options: int, kind: str = "") -> None:
    """Mount something, or change how an existing mount propagates. Raises OSError."""
    if _libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(options), None):
        _fail(target)


def detach(target: str) -> bool:
    """Take a mount and what is mounted below it off the tree; return whether there was one."""
    return int(_libc.umount2(target.encode(), _DETACH)) == 0


def _fail(target: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), target)
