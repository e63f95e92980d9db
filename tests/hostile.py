"""Texts with control characters, and a check for such characters."""

from __future__ import annotations

import unicodedata

TEXTS = {
    "title and bell": ("a\x1b]0;owned\x07b", r"a\x1b]0;owned\x07b"),
    "clear screen": ("a\x1b[2J\x1b[Hb", r"a\x1b[2J\x1b[Hb"),
    "the tool's own red": ("a\x1b[31mb\x1b[0m", r"a\x1b[31mb\x1b[0m"),
    "C1's own CSI": ("a\x9b2Jb", r"a\x9b2Jb"),
    "back over the line": ("a\rb\x08\x7f", r"a\rb\x08\x7f"),
    "null": ("a\x00b", r"a\x00b"),
    "other direction": ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
    "other ends of lines": ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
    "half a character": ("a\ud800b", r"a\ud800b"),
}
"""Name -> foreign text, and its display."""

MIXED, MIXED_SHOWN = "a\x1b]0;b\x07\x9b2J\u202ec\x7fd", r"a\x1b]0;b\x07\x9b2J\u202ec\x7fd"
"""Several control characters that a file name may contain."""

_ALLOWED = frozenset("\n\t")
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def find_control_characters(text: str) -> set[str]:
    """Return the characters of a text that would steer a terminal."""
    return {
        each
        for each in set(text) - _ALLOWED
        if each in _DIRECTIONS or unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"}
    }
