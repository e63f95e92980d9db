"""Mutations of foreign input, and the loop that feeds them to a reader.

``GPU_PROVISION_FUZZ`` is the number of inputs of each test (300), ``GPU_PROVISION_FUZZ_SEED`` the seed (15). The
default seed is fixed, so that a failure in CI can be repeated; a failure prints the seed and the number of each input.
"""

from __future__ import annotations

import copy
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

import pytest

COUNT = int(os.environ.get("GPU_PROVISION_FUZZ", "300"))
SEED = os.environ.get("GPU_PROVISION_FUZZ_SEED", "15")

Input = TypeVar("Input")

_MAX_INPUT = 600  # characters of a failing input in the message
_MAX_PLACES = 20

WORDS = (
    "", " ", "-", "]", "[", "[end]", "\t", "\r", "\x00", "\x0b", "\x1b[2J", "\x85", "\u2028", "a\x1cb", "a b", "=",
    "==", ":", "0", "-1", "+1", "00", "1.5", "1e999", "nan", "0x", "0x10de", "1_0", "9" * 19, "9" * 5000, "٣", "²", "Ⅷ",
    "²Mi", "/", "//", "../..", "~", "$(id)", "${x", "%s", "\\n", "'", '"', "x" * 70_000, "\N{ZERO WIDTH SPACE}", "é",
    "\ufffd", "true", "null", "None", "{}", "[]", "*", "!", "#", "(", "[a-", "a{9999999999}", "(?P<x",
)  # fmt: skip
"""Words that break readers of lines."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, -0.0, 1.5, 1e308,
    "", " ", "x", "x\n", "0", "²", "9" * 5000, "\x00", "\x1b[2J", "é" * 300, "x" * 70_000, "../..", "2026-01-01",
    "\ud800", [], {}, [None], [[]], [{}], [""], {"": None}, {"x": {}}, {"name": 1}, [1, "x", None],
)  # fmt: skip
"""Values that break readers of documents; JSON and YAML escapes can contain a lone surrogate."""


def check_reader(
    make: Callable[[Random], Input], read: Callable[[Input], object], *allowed: type[Exception], count: int = COUNT
) -> None:
    """Feed inputs to a reader; fail with each location of a disallowed exception, and one input of each."""
    examples: dict[str, str] = {}
    began = time.monotonic()
    failures = 0
    for number in range(count):
        value = make(Random(f"{SEED}/{number}"))  # noqa: S311 - nothing secret
        try:
            read(copy.deepcopy(value))
        except allowed:
            continue
        except Exception as error:  # noqa: BLE001 - the failure that the test looks for
            failures += 1
            example = f"{str(error)[:_MAX_INPUT]}\n    input {number}: {str(value)[:_MAX_INPUT]!r}"
            examples.setdefault(_location(error), example)
    summary = f"{count} inputs of seed {SEED}, {failures} exceptions, {time.monotonic() - began:.1f} s"
    print(summary)  # noqa: T201 - shown by pytest -s, and with a failure
    if examples:
        lines = [f"{location}\n    {example}" for location, example in [*examples.items()][:_MAX_PLACES]]
        again = f"GPU_PROVISION_FUZZ_SEED={SEED} GPU_PROVISION_FUZZ={COUNT} repeats it"
        pytest.fail("\n".join([summary, again, *lines]), pytrace=False)


def _location(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno} {type(error).__name__}"


def mutate_text(dice: Random, text: str) -> str:
    """Return a text with one to four mutations of its lines, words, or bytes; invalid UTF-8 is dropped or replaced."""
    for _ in range(dice.randint(1, 4)):
        text = dice.choice(_OF_TEXT)(dice, text)
    return text


def mutate_lines(dice: Random, text: str) -> list[str]:
    """Return the lines of a mutated text, split at newlines only, as pipes of processes are."""
    return mutate_text(dice, text).removesuffix("\n").split("\n")


def mutate_value(dice: Random, document: Any) -> Any:
    """Return a copy of a JSON document with one to three values replaced, removed, renamed, doubled or moved."""
    document = copy.deepcopy(document)
    for _ in range(dice.randint(1, 3)):
        places = [*_locations(document)]
        if not places:
            return dice.choice(VALUES)
        parent, key = dice.choice(places)
        dice.choice(_OF_VALUES)(dice, parent, key, places)
    return document


def _locations(value: Any) -> Iterator[tuple[Any, Any]]:
    match value:
        case dict():
            pairs: Sequence[tuple[Any, Any]] = [*value.items()]
        case list():
            pairs = [*enumerate(value)]
        case _:
            return
    for key, each in pairs:
        yield value, key
        yield from _locations(each)


def _join(dice: Random, text: str) -> str:
    at = dice.choice([index for index, each in enumerate(text) if each == "\n"] or [0])
    return text[:at] + text[at + 1 :]


def _damage_bytes(dice: Random, text: str) -> str:
    data = bytearray(text.encode(errors="replace"))
    for _ in range(dice.randint(1, 20)):
        at = dice.randint(0, len(data))
        data[at : at + dice.randint(0, 3)] = dice.randbytes(dice.randint(0, 3))
    return data.decode(errors=dice.choice(["ignore", "replace"]))  # as iconv on hosts does, and connectors


def _replace_all(dice: Random, text: str) -> str:
    return dice.choice(["", "\n", dice.choice(WORDS), dice.randbytes(min(len(text), 4000)).decode(errors="replace")])


def _lines(change: Callable[[Random, list[str]], object]) -> Callable[[Random, str], str]:
    def changed(dice: Random, text: str) -> str:
        lines = text.split("\n")
        change(dice, lines)
        return "\n".join(lines)

    return changed


def _words(change: Callable[[Random, list[str]], object]) -> Callable[[Random, str], str]:
    def of_one(dice: Random, lines: list[str]) -> None:
        at = dice.randrange(len(lines))
        words = lines[at].split(" ")
        change(dice, words)
        lines[at] = " ".join(words)

    return _lines(of_one)


_REPLACE_WORD = _words(lambda dice, words: words.__setitem__(dice.randrange(len(words)), dice.choice(WORDS)))
_REMOVE_WORDS = _words(lambda dice, words: words.__delitem__(slice(dice.randint(0, len(words)), None)))
_OF_TEXT: tuple[Callable[[Random, str], str], ...] = (
    lambda dice, text: text[: dice.randint(0, len(text))],
    _lines(lambda dice, lines: lines.pop(dice.randrange(len(lines)))),
    _lines(lambda dice, lines: lines.insert(dice.randrange(len(lines) + 1), dice.choice(lines))),
    _lines(lambda dice, lines: dice.shuffle(lines)),
    *(_join, _REPLACE_WORD, _REPLACE_WORD, _REMOVE_WORDS, _REMOVE_WORDS),
    _words(lambda dice, words: words.insert(dice.randint(0, len(words)), dice.choice(WORDS))),
    *(_damage_bytes, _damage_bytes, _replace_all),
)
"""Mutations of texts; an entry that is listed twice occurs twice as often."""


def _rename(dice: Random, parent: Any, key: Any, _places: Any) -> None:
    value = parent.pop(key)
    if isinstance(parent, dict):
        parent[dice.choice(WORDS)] = value


def _repeat(dice: Random, parent: Any, key: Any, _places: Any) -> None:
    value = copy.deepcopy(parent[key])
    if isinstance(parent, list):
        parent.insert(key, value)
    else:
        parent[dice.choice(WORDS)] = value


def _other_value(make: Callable[[Random, Any, Any], Any]) -> Callable[[Random, Any, Any, Any], None]:
    def put(dice: Random, parent: Any, key: Any, places: Any) -> None:
        parent[key] = copy.deepcopy(make(dice, parent[key], places))

    return put


def _value_elsewhere(dice: Random, _value: Any, places: Sequence[tuple[Any, Any]]) -> Any:
    other, name = dice.choice(places)
    return other[name]


_PUT = _other_value(lambda dice, _value, _places: dice.choice(VALUES))
_OF_VALUES: tuple[Callable[[Random, Any, Any, Any], None], ...] = (
    *(_PUT, _PUT, _PUT, lambda _dice, parent, key, _places: parent.__delitem__(key), _rename, _repeat),
    _other_value(lambda dice, value, _places: dice.choice([[value], {"x": value}, str(value)])),
    _other_value(_value_elsewhere),
    _other_value(lambda dice, text, _: mutate_text(dice, text) if isinstance(text, str) else dice.choice(VALUES)),
)
