"""Texts of bounded length for whoever reads a status. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_ROOM = len("; and 1000000 more")


def cut(text: str, most: int) -> str:
    """Return a text of so many characters at most."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_many_as_fit(sentences: Sequence[str], most: int) -> str:
    """Return whole sentences, the first one in any case, in so many characters at most, and how many are left out."""
    text = cut(sentences[0], most - _ROOM)
    for position, sentence in enumerate(sentences[1:], start=1):
        if len(text) + len(sentence) + _ROOM > most:
            return f"{text}; and {len(sentences) - position} more"
        text = f"{text}; {sentence}"
    return text
