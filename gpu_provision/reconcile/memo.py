"""Keep results of pure functions for as long as their inputs are equal."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """The results of one function by key, such as the name of a node.

    A watch replaces objects and never changes them. So most inputs are the very same objects as before, which costs
    nothing to see. Equal results are one object as well, so that a memo of what follows sees it as fast.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._known: dict[Key, tuple[object, Value]] = {}

    def copy(self) -> Memo[Key, Value]:
        """Return a memo for another thread that starts with the same results."""
        other = Memo[Key, Value]()
        other._known = self._known
        return other

    def of(self, inputs: Mapping[Key, object], work: Callable[[Key], Value]) -> dict[Key, Value]:
        """Return the result for each key; results of other keys are forgotten.

        Args:
            inputs: Key -> all that ``work`` reads to answer for it.
            work: The function.
        """
        before = self._known
        self._known = {key: _kept(before.get(key), given, key, work) for key, given in inputs.items()}
        return {key: value for key, (_, value) in self._known.items()}


def _kept(
    known: tuple[object, Value] | None, given: object, key: Key, work: Callable[[Key], Value]
) -> tuple[object, Value]:
    if known is None:
        return given, work(key)
    before, value = known
    if before is given or before == given:
        return known
    found = work(key)
    return given, value if found == value else found
