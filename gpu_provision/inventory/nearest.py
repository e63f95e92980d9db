"""Finds what the user probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the candidate that is most like the word, or an empty string if none is.

    Case, dashes and underscores count for nothing, so that ``devicePlugin`` finds ``device_plugin``.
    """
    import difflib  # noqa: PLC0415  only files with a mistake need it

    by_form = {_form(candidate): candidate for candidate in candidates}
    close = difflib.get_close_matches(_form(word), by_form, n=1, cutoff=0.6)
    return by_form[close[0]] if close else ""


def did_you_mean(word: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """Return a fix that names the nearest candidate, or the other advice if nothing is near."""
    found = nearest(word, candidates)
    return f"Did you mean {found}?" if found else otherwise


def one_of(words: Iterable[str]) -> str:
    """Return the words as a list for people: ``a, b or c``."""
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last


def _form(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
