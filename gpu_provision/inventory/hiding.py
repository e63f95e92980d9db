"""An inventory's text without its secrets, for records that others may read; and with them, from a file that has them.

A secret is replaced where it stands, so all other values are as they were. Comments go: no schema marks a secret there.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.redaction import HIDDEN, is_secret, looks_secret, may_hold_secret, redact

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LINE_END = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_COMMENT = re.compile(r"(?P<line>^[ \t]*#.*(?:\n|\Z))|(?P<rest>[ \t]+#.*$)", re.MULTILINE)
_ANCHOR_OR_TAG = re.compile(r"(?:[&!]\S*\s+)*")
_TELLING = 6  # characters of a secret that is one in free text; a shorter one may be a common word


class _Scalar(NamedTuple):
    """One value of a text: where it begins and ends, what it means, and its path; one more for each alias of it."""

    start: int
    end: int
    value: str
    path: KeyPath


def hidden(text: str) -> str:
    """Return the text of a valid inventory with placeholders for secrets, and without comments."""
    scalars = list(_scalars(text))
    secrets = _secrets(scalars)
    told = ((each, _shown(each, secrets)) for each in scalars)
    changes = {(each.start, each.end): new for each, new in sorted(told, key=_hidden_last) if new != each.value}
    return _without_comments(_changed(text, ((*span, _quoted(new)) for span, new in changes.items())))


def _hidden_last(told: tuple[_Scalar, str]) -> bool:
    """Order what an alias shows at several places: hidden at one of them is hidden at all."""
    return told[1] == HIDDEN


def restored(text: str, source: str) -> str:
    """Return the text with those of its secrets that another inventory has.

    A value of the other inventory is taken if it would look the same hidden: a proxy's password is that of the same
    address.
    """
    others = list(_scalars(source)) if source else []
    secrets = _secrets(others)
    known = {(each.path, _shown(each, secrets)): each.value for each in others}
    hidden_ones = (each for each in _scalars(text) if HIDDEN in each.value)
    spans = {(each.start, each.end): known.get((each.path, each.value)) for each in hidden_ones}
    return _changed(text, ((*span, _quoted(value)) for span, value in spans.items() if value is not None))


def replaced(text: str, values: Mapping[KeyPath, str]) -> str:
    """Return the text with other values where it has one at their paths; all else in it is as it was."""
    spans = {(each.start, each.end): values[each.path] for each in _scalars(text) if each.path in values}
    return _changed(text, ((*span, _quoted(value)) for span, value in spans.items()))


def _secrets(scalars: Iterable[_Scalar]) -> frozenset[str]:
    return frozenset(each.value for each in scalars if is_secret(each.path) and len(each.value) >= _TELLING)


def _shown(each: _Scalar, secrets: frozenset[str]) -> str:
    """Return a value as a record has it. Free text that looks like a secret or holds a known one is hidden as well."""
    parent, last = each.path[-2:] if len(each.path) > 1 else ("", "")
    guessed = {"args": may_hold_secret(each.value), "annotations": looks_secret(str(last))}.get(str(parent))
    if guessed is None:
        return redact(each.path, each.value)
    is_hidden = each.value and (guessed or any(secret in each.value for secret in secrets))
    return HIDDEN if is_hidden else redact(each.path, each.value)


def _scalars(text: str) -> Iterator[_Scalar]:
    starts = [0, *(found.end() for found in _LINE_END.finditer(text))]

    def place(mark: Any) -> int:
        return int(starts[mark.line] + mark.column)

    yield from _below(yaml.compose(text, Loader=_LOADER), (), place)


def _below(node: Any, path: KeyPath, place: Callable[[Any], int]) -> Iterator[_Scalar]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _below(value, (*path, str(key.value)), place)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _below(item, (*path, _name_of(item) or index), place)
    elif node is not None:
        yield _Scalar(place(node.start_mark), place(node.end_mark), node.value, path)


def _name_of(item: Any) -> str:
    """Return what tells an item of a list from the others, wherever it stands: its name."""
    pairs = item.value if isinstance(item, yaml.MappingNode) else ()
    return next((str(value.value) for key, value in pairs if key.value == "name"), "")


def _without_comments(text: str) -> str:
    spans = sorted((each.start, each.end) for each in _scalars(text))
    starts = [start for start, _ in spans]

    def kept(found: re.Match[str]) -> str:
        before = bisect_right(starts, found.start()) - 1
        return found[0] if before >= 0 and found.start() < spans[before][1] else ""

    return _COMMENT.sub(kept, text)


def _quoted(value: str) -> str:
    """Return a value in double quotes, whose escapes YAML has of JSON."""
    return json.dumps(value, ensure_ascii=False)


def _changed(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with parts replaced; anchors stay, and so do blanks, as a block ends where the next begins."""
    for start, end, new in sorted(changes, reverse=True):
        old = text[start:end]
        anchor = _ANCHOR_OR_TAG.match(old)
        kept = anchor[0] if anchor else ""
        text = text[:start] + kept + new + old[len(old.rstrip()) :] + text[end:]
    return text
