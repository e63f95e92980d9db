from __future__ import annotations

from dataclasses import replace

from gpu_provision.operator.overlaps import Claim, Overlap, overlaps


def claim(stack: str, since: int, *nodes: str) -> Claim:
    return Claim(stack, f"2026-11-22T09:00:0{since}Z", frozenset(nodes), f"home-of-{stack}")


def test_stacks_with_nodes_of_their_own_live_side_by_side() -> None:
    assert overlaps([claim("a", 1, "n1"), claim("b", 2, "n2")]) == {}


def test_the_stack_that_was_there_first_keeps_its_nodes() -> None:
    found = overlaps([claim("young", 2, "n1", "n2", "n3"), claim("old", 1, "n3", "n1")])
    assert found == {"young": Overlap("old", ("n1", "n3"))}


def test_of_two_that_were_made_in_one_second_the_name_decides() -> None:
    assert overlaps([claim("b", 1, "n1"), claim("a", 1, "n1")]).keys() == {"b"}


def test_a_stack_that_gives_way_hinders_nobody() -> None:
    found = overlaps([claim("a", 1, "n1"), claim("b", 2, "n1", "n2"), claim("c", 3, "n2")])
    assert found.keys() == {"b"}


def test_a_namespace_is_owned_as_nodes_are() -> None:
    one, other = claim("a", 1, "n1"), claim("b", 2, "n2")
    assert overlaps([one, replace(other, namespace=one.namespace)]) == {"b": Overlap("a", (), "home-of-a")}
