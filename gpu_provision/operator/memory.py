"""Keeps a process small that lives for months and has followed thousands of nodes."""

from __future__ import annotations

import contextlib
import ctypes
import gc

_M_ARENA_MAX = -8  # of glibc's mallopt


def use_one_arena() -> None:
    """Have all threads share one arena of the C library's; call it before they start.

    Each of the threads that follow a kind would else have its own, most of it free.
    """
    with contextlib.suppress(AttributeError):  # glibc alone has arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def tidy_up() -> None:
    """Give free memory back now, and spare what is left from being searched for garbage before the next time.

    Live copies of a thousand nodes are a hundred thousand objects: to search them takes a tenth of a second, and would
    else be done each time that a node joins.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
