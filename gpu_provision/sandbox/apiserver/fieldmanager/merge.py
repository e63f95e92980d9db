"""A live object with an applied configuration laid over it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from operator import is_not
from typing import Any

from gpu_provision.sandbox.apiserver.fieldmanager.compare import by_step
from gpu_provision.sandbox.apiserver.fieldmanager.elements import item_step
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, CLEARED, Object, Shape, Type


def merge(live: Object, config: Object, root: Type) -> Object:
    """Return the live object with every value of the configuration, sharing the parts that stay.

    What the configuration makes empty is CLEARED; settled() removes it.
    """
    return _merge_maps(root, live, config)


def settled(value: Any) -> Any:
    """Return a value without what is CLEARED in it; itself if nothing is."""
    if isinstance(value, dict):
        out: Any = {name: settled(part) for name, part in value.items() if part is not CLEARED}
        changed = len(out) < len(value) or any(out[name] is not part for name, part in value.items())
    elif isinstance(value, list):
        out = [settled(part) for part in value if part is not CLEARED]
        changed = len(out) < len(value) or any(map(is_not, out, value))
    else:
        return value
    return out if changed else value


def _merge_maps(typed: Type, live: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(live)
    for name, value in config.items():
        merged = _merge(typed.of(name), out.get(name, ABSENT), value)
        if merged is ABSENT:
            out.pop(name, None)
        else:
            out[name] = merged
    return out


def _merge(typed: Type, live: object, config: object) -> Any:
    if config is None or typed.empty(config):
        return _merge_empty(typed, live, config)
    if not typed.divides(config):
        return deepcopy(config) if isinstance(config, (dict, list)) else config
    match config:
        case dict():
            return _merge_maps(typed, live if isinstance(live, dict) else {}, config)
        case list():
            return _merge_lists(typed, live if isinstance(live, list) else [], config)


def _merge_empty(typed: Type, live: object, config: object) -> Any:
    """Return what null or an empty value leaves: it clears what is one value, and adds nothing to the rest."""
    if live and typed.shape is not Shape.LEAF and typed.divides(live):
        return live
    if not typed.native or (config is not None and typed.present):
        return config
    return live if config is None and (live is ABSENT or live is None) else CLEARED


def _merge_lists(typed: Type, live: list[Any], config: list[Any]) -> list[Any]:
    """Return the items of both lists.

    Where both lists hold an item, the configuration's order counts; an item that only the live list holds
    keeps its place before the next shared one, and a new item follows the one that it follows in the
    configuration.
    """
    mine = by_step(typed, live)
    theirs = {item_step(typed, item): item for item in config}
    merged = {step: _merge_item(typed, mine.get(step, []), item) for step, item in theirs.items()}
    return _arranged([(item_step(typed, item), item) for item in live], merged)


def _merge_item(typed: Type, live: list[Any], config: object) -> Any:
    # Items that share a key cannot be merged with; the applied one takes their place.
    return _merge(typed.item or typed, live[0] if len(live) == 1 else ABSENT, config)


def _arranged(live: list[tuple[str, Any]], merged: Mapping[str, Any]) -> list[Any]:
    here = {step for step, _ in live}
    waiting, pending = deque(live), deque(merged)
    shared = deque(step for step in merged if step in here)
    out: list[Any] = []
    while waiting or pending:
        step, item = waiting[0] if waiting else ("", None)
        if waiting and step not in merged:
            out.append(item)
            waiting.popleft()
            continue
        if waiting and pending and step != pending[0] and shared and shared[0] != step:
            waiting.popleft()  # it comes, or came, where the configuration has it
            continue
        if waiting and (step not in pending or step == pending[0]):
            waiting.popleft()
        if pending:
            following = pending.popleft()
            out.append(merged[following])
            if shared and shared[0] == following:
                shared.popleft()
    return out
