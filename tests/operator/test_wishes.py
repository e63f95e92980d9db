from __future__ import annotations

from typing import Any

from gpu_provision.operator.wishes import Wish


def wish(**metadata: Any) -> Wish:
    return Wish({"metadata": {"name": "prod", "uid": "u", "generation": 1, **metadata}, "spec": {}})


GOING = {"deletionTimestamp": "2026-11-22T09:00:00Z"}
KEEP = {"annotations": {"gpu-provision.io/on-delete": "keep"}}


def test_a_stack_that_is_deleted_takes_what_it_has_installed_along_unless_it_says_otherwise() -> None:
    """By an annotation that kubectl can set."""
    assert not wish(**GOING).is_to_be_released
    assert not wish(annotations={"gpu-provision.io/on-delete": "remove"}).is_to_be_released
    assert wish(**GOING, **KEEP).is_to_be_released


def test_the_annotation_counts_also_while_a_removal_waits() -> None:
    """And breaks no run off while nobody deletes the stack."""
    assert wish().asks_the_same_as(wish(**KEEP))
    assert not wish(**GOING).asks_the_same_as(wish(**GOING, **KEEP))
