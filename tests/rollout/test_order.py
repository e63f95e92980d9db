"""Which of several nodes goes first."""

from __future__ import annotations

from gpu_provision.model.upgrade import Order
from gpu_provision.rollout.order import rank
from gpu_provision.rollout.snapshot import Node, Pod, Use, Wanted


def node(name: str, position: int = 0, *pods: Pod) -> Node:
    return Node(name=name, domain="d", wanted=Wanted("x"), position=position, pods=pods)


def test_numbers_in_names_count_as_numbers() -> None:
    """And texts before them as texts."""
    names = ["t4-10", "t4-9", "h100-1", "rack2-node10", "rack2-node9", "rack10-node1"]
    ordered = sorted(names, key=lambda name: rank(node(name), Order.NAME))
    assert ordered == ["h100-1", "rack2-node9", "rack2-node10", "rack10-node1", "t4-9", "t4-10"]


def test_the_other_orders_begin_with_something_else_and_end_with_the_name() -> None:
    """Equals would otherwise come in any order."""
    job = Pod(namespace="default", name="train", uid="u", use=Use.REQUEST)
    nodes = [node("b", 0, job), node("c", 2), node("a", 1)]
    assert [each.name for each in sorted(nodes, key=lambda one: rank(one, Order.LISTED))] == ["b", "a", "c"]
    assert [each.name for each in sorted(nodes, key=lambda one: rank(one, Order.IDLE_FIRST))] == ["a", "c", "b"]
