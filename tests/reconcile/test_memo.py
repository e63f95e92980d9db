"""Results that hold while their inputs are equal."""

from __future__ import annotations

from gpu_provision.reconcile.situation import Memo


def test_only_what_has_changed_is_worked_out() -> None:
    """Also by a copy; what is asked for no more is forgotten."""
    memo, asked = Memo[str, str](), list[str]()

    def work(name: str) -> str:
        asked.append(name)
        return name.upper()

    assert memo.of({"a": [1], "b": [2]}, work) == {"a": "A", "b": "B"}
    assert memo.of({"a": [1], "b": [3]}, work) == {"a": "A", "b": "B"}
    assert memo.copy().of({"a": [1]}, work) == {"a": "A"}
    assert asked == ["a", "b", "b"]
    memo.of({}, work)
    memo.of({"a": [1]}, work)
    assert asked == ["a", "b", "b", "a"]


def test_equal_results_are_one_object() -> None:
    memo = Memo[str, list[int]]()
    first = memo.of({"a": 1}, lambda _: [0])["a"]
    assert memo.of({"a": 2}, lambda _: [0])["a"] is first
    assert memo.of({"a": 3}, lambda _: [1])["a"] == [1]
