"""Kubernetes label selectors, in kubectl's text form and in the form of objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Selector = Callable[[Mapping[str, str]], bool]

_SETS = re.compile(r"^(?P<key>\S+)\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s!=]+)\s*(?P<how>==|=|!=)\s*(?P<value>[^\s!=]*)$")
_THERE = re.compile(r"^(?P<not>!?)\s*(?P<key>[^\s!=()]+)$")

_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")

_COMMA = re.compile(r",(?![^(]*\))")


class SelectorError(ValueError):
    """A text is no label selector; the message names the invalid part."""


def parse_selector(text: str) -> Selector:
    """Return the selector that a text such as ``app=train,tier in (a,b),!skip`` means; an empty one selects all.

    Raises:
        SelectorError: It is no label selector.
    """
    parts = [_parse_requirement(part.strip()) for part in _COMMA.split(text)] if text.strip() else []
    return lambda labels: all(part(labels) for part in parts)


def _parse_requirement(text: str) -> Selector:
    if match := _SETS.fullmatch(text):
        values = {_require_match(_VALUE, value.strip(), "value") for value in match["values"].split(",")}
        return _one_of(_require_match(_KEY, match["key"], "key"), values, negated=match["how"] == "notin")
    if match := _EQUAL.fullmatch(text):
        value = _require_match(_VALUE, match["value"], "value")
        return _one_of(_require_match(_KEY, match["key"], "key"), {value}, negated=match["how"] == "!=")
    if match := _THERE.fullmatch(text):
        return _exists(_require_match(_KEY, match["key"], "key"), negated=bool(match["not"]))
    raise SelectorError(f"{text!r} is no requirement on a label" if text else "a requirement between commas is empty")


def _require_match(pattern: re.Pattern[str], text: str, what: str) -> str:
    if pattern.fullmatch(text):
        return text
    message = f"{text!r} is no {what} of a label"
    raise SelectorError(message)


def _one_of(key: str, values: set[str], *, negated: bool) -> Selector:
    return lambda labels: (labels.get(key) in values) is not negated


def _exists(key: str, *, negated: bool) -> Selector:
    return lambda labels: (key in labels) is not negated


def selector_of(selector: Mapping[str, Any] | None) -> Selector:
    """Return the selector of an object's ``labelSelector`` field; one that is absent selects nothing."""
    if selector is None:
        return lambda _: False
    parts = [_one_of(key, {value}, negated=False) for key, value in (selector.get("matchLabels") or {}).items()]
    for item in selector.get("matchExpressions") or ():
        how, key = item["operator"], item["key"]
        if how in {"In", "NotIn"}:
            parts.append(_one_of(key, {*(item.get("values") or ())}, negated=how == "NotIn"))
        else:
            parts.append(_exists(key, negated=how == "DoesNotExist"))
    return lambda labels: all(part(labels) for part in parts)
