"""Finds what the user probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable


def find_nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the candidate that is most like the word, or an empty string if none is.

    Case, dashes and underscores count for nothing, so that ``devicePlugin`` finds ``device_plugin``.
    """
    import difflib  # noqa: PLC0415  only files with a mistake need it

    by_form = {_form(candidate): candidate for candidate in candidates}
    close = difflib.get_close_matches(_form(word), by_form, n=1, cutoff=0.6)
    return by_form[close[0]] if close else ""


def did_you_mean(word: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """Return a fix that names the nearest candidate, or the other advice if nothing is near."""
    found = find_nearest(word, candidates)
    return f"Did you mean {found}?" if found else otherwise


def one_of(words: Iterable[str]) -> str:
    """Return the words as a list for people: ``a, b or c``."""
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last


def _form(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")


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


def suggest_value(value: str, pattern: str) -> str:
    """Return a value like the given one that fits the pattern, or an empty string if no guess does."""
    guesses = (guess(value) for guess in _GUESSES)
    return next((guess for guess in guesses if guess and re.fullmatch(pattern, guess)), "")
