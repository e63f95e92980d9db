"""Texts for people: lists of bounded length, and suggestions for mistyped words."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)

MAX_NODES = 10
"""Nodes that a finding names."""


def nodes_at(names: Sequence[str], limit: int = 0) -> str:
    """Return nodes as the place of a finding: ``Node a``, or ``Nodes a, b and 3 more``; all of them without a limit."""
    return f"{'Node' if len(names) == 1 else 'Nodes'} {join_limited(names, limit or len(names))}"


def names_by(pairs: Iterable[tuple[_Key, str]]) -> Iterable[tuple[_Key, list[str]]]:
    """Return the names of each key, such as nodes by what they have in common, in the order of the first ones."""
    groups: dict[_Key, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return groups.items()


def join_limited(items: Iterable[str], limit: int, separator: str = ", ") -> str:
    """Join at most ``limit`` items, and count the rest: ``a, b and 3 more``."""
    every = list(items)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return separator.join(every[:limit]) + more


def pluralize(number: int, noun: str) -> str:
    """Return ``1 node`` or ``2 nodes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def join_or(words: Iterable[str]) -> str:
    """Return the words as a list for people: ``a, b or c``."""
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last


def find_nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the candidate that is most like the word, or an empty string if none is.

    Case, dashes and underscores are ignored, so that ``devicePlugin`` finds ``device_plugin``.
    """
    import difflib  # noqa: PLC0415  only mistakes need it

    def form(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    by_form = {form(candidate): candidate for candidate in candidates}
    close = difflib.get_close_matches(form(word), by_form, n=1, cutoff=0.6)
    return by_form[close[0]] if close else ""


def did_you_mean(word: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """Return a fix that names the nearest candidate, or the other advice if nothing is near."""
    near = find_nearest(word, candidates)
    return f"Did you mean {near}?" if near else otherwise
