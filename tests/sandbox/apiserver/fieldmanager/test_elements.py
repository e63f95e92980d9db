"""The steps of a path."""

from __future__ import annotations

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager.fields import (
    KeylessItem,
    item_step,
    order,
    printed,
)
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, Shape, Type

PORTS = Type(Shape.LIST, keys=(("port", ABSENT), ("protocol", "TCP")))
NAMES = Type(Shape.LIST, keys=(("name", ABSENT),))
TAGS = Type(Shape.SET)


def test_a_key_is_compact_json_with_its_fields_in_order() -> None:
    """Clients compare these strings, so the form is exact."""
    assert item_step(PORTS, {"protocol": "UDP", "port": 53}) == 'k:{"port":53,"protocol":"UDP"}'


def test_a_key_field_that_is_left_out_has_its_default() -> None:
    """A port without a protocol is a TCP port."""
    assert item_step(PORTS, {"port": 53}) == 'k:{"port":53,"protocol":"TCP"}'


def test_true_and_one_are_different_items() -> None:
    """Python's equality of True and 1 must not mix up two steps."""
    steps = [item_step(NAMES, {"name": value}) for value in (1, True, "1")]
    assert steps == ['k:{"name":1}', 'k:{"name":true}', 'k:{"name":"1"}']


def test_characters_are_escaped_as_the_server_does() -> None:
    """Go's encoder writes <, > and & as escapes and other text as it is."""
    assert item_step(NAMES, {"name": "<ü&"}) == 'k:{"name":"\\u003cü\\u0026"}'


def test_an_item_of_a_set_is_its_value() -> None:
    """Strings and numbers are kept apart."""
    assert [item_step(TAGS, value) for value in ("a", 1)] == ['v:"a"', "v:1"]


@pytest.mark.parametrize("item", [None, "text", {}, {"other": 1}])
def test_an_item_without_a_key_has_no_step(item: object) -> None:
    """It cannot be told from the others."""
    with pytest.raises(KeylessItem):
        item_step(NAMES, item)


@pytest.mark.parametrize("item", [None, {}, []])
def test_only_scalars_are_items_of_a_set(item: object) -> None:
    """Objects and lists in a set are refused."""
    with pytest.raises(KeylessItem):
        item_step(TAGS, item)


def test_steps_have_the_servers_order() -> None:
    """The value itself, fields, keys, values, positions; numbers by value."""
    steps = [".", "f:a", "f:b", 'k:{"a":9}', 'k:{"a":10}', 'k:{"a":"x"}', "v:2", "v:10", 'v:"a"', "i:2", "i:10"]
    assert sorted(set(steps), key=order) == steps


@pytest.mark.parametrize(
    ("step", "text"),
    [("f:a", ".a"), ('k:{"a":1,"b":"x"}', '[a=1,b="x"]'), ('v:"x"', '[="x"]'), ("v:false", "[=false]"), ("i:3", "[3]")],
)
def test_a_step_is_printed_as_in_the_servers_messages(step: str, text: str) -> None:
    """People copy these paths into their searches."""
    assert printed(step) == text
