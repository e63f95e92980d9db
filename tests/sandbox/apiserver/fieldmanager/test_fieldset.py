"""Steps of field paths, and sets of paths against the plain set arithmetic of Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import (
    SELF,
    FieldSet,
    KeylessItemError,
    difference,
    intersection,
    item_step,
    paths,
    sort_fields,
    step_order,
    union,
)
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, FieldShape, Type, builtin
from gpu_provision.sandbox.apiserver.resources import builtin_resources

Path = tuple[str, ...]
STEPS = ("f:a", "f:b", 'k:{"name":"x"}', 'v:"y"')


def decoded(fields: FieldSet, prefix: Path = ()) -> Iterator[Path]:
    for step, node in fields.items():
        if step != SELF:
            if not node or SELF in node:
                yield (*prefix, step)
            yield from decoded(node, (*prefix, step))


def encoded(members: set[Path]) -> FieldSet:
    root: dict[str, Any] = {}
    for path in sorted(members, key=len, reverse=True):
        node = root
        for step in path:
            node = node.setdefault(step, {})
        if node:
            node[SELF] = {}
    return sort_fields(root)


def some_paths(chance: random.Random) -> set[Path]:
    lengths = (chance.randint(1, 3) for _ in range(chance.randint(0, 8)))
    return {tuple(chance.choice(STEPS) for _ in range(length)) for length in lengths}


SAMPLES = [(some_paths(chance), some_paths(chance)) for chance in map(random.Random, range(400))]


def test_what_is_encoded_is_decoded_again() -> None:
    """FieldsV1 holds every set of paths, and each in one form only."""
    for members, _ in SAMPLES:
        assert set(decoded(encoded(members))) == members


@pytest.mark.parametrize(
    ("operation", "arithmetic"),
    [(union, set.union), (difference, set.difference), (intersection, set.intersection)],
)
def test_an_operation_gives_what_set_arithmetic_gives(
    operation: Callable[[FieldSet, FieldSet], FieldSet], arithmetic: Callable[[set[Path], set[Path]], set[Path]]
) -> None:
    """The result is right, in canonical form and in the server's order, and the arguments are not changed."""
    for left, right in SAMPLES:
        one, other = encoded(left), encoded(right)
        result = operation(one, other)
        assert repr(result) == repr(encoded(arithmetic(left, right)))
        assert (one, other) == (encoded(left), encoded(right))


def test_a_difference_that_takes_nothing_is_the_set_itself() -> None:
    """Unchanged entries are recognized by identity, which keeps writes cheap."""
    fields = encoded({("f:a",), ("f:b", "f:a")})
    assert difference(fields, encoded({("f:b", "f:b")})) is fields


def test_paths_are_printed_members_first() -> None:
    """The members of a level come before what is deeper, fields before items, numbers by value."""
    fields = encoded(
        {
            ("f:a", "f:deep"),
            ("f:b",),
            ("f:ports", 'k:{"port":443,"protocol":"TCP"}'),
            ("f:ports", 'k:{"port":80,"protocol":"TCP"}', "f:name"),
            ("f:ports", 'k:{"port":80,"protocol":"TCP"}'),
            ("f:tags", "v:true"),
        }
    )
    assert list(paths(fields)) == [
        ".b",
        ".a.deep",
        '.ports[port=80,protocol="TCP"]',
        '.ports[port=443,protocol="TCP"]',
        '.ports[port=80,protocol="TCP"].name',
        ".tags[=true]",
    ]


PORTS = Type(FieldShape.LIST, keys=(("port", ABSENT), ("protocol", "TCP")))
NAMES = Type(FieldShape.LIST, keys=(("name", ABSENT),))


@pytest.mark.parametrize(
    ("typed", "item", "step"),
    [
        (PORTS, {"protocol": "UDP", "port": 53}, 'k:{"port":53,"protocol":"UDP"}'),
        (PORTS, {"port": 53}, 'k:{"port":53,"protocol":"TCP"}'),  # the key has a default
        (NAMES, {"name": 1}, 'k:{"name":1}'),  # True == 1 in Python
        (NAMES, {"name": True}, 'k:{"name":true}'),
        (NAMES, {"name": "<\u00fc&"}, 'k:{"name":"\\u003c\u00fc\\u0026"}'),  # as Go's encoder escapes
        (Type(FieldShape.SET), "a", 'v:"a"'),
        (Type(FieldShape.SET), 1, "v:1"),
    ],
)
def test_the_step_to_an_item_has_the_servers_form(typed: Type, item: object, step: str) -> None:
    """Clients compare these strings, so the form is exact."""
    assert item_step(typed, item) == step


@pytest.mark.parametrize(("typed", "item"), [(NAMES, None), (NAMES, "text"), (NAMES, {}), (Type(FieldShape.SET), {})])
def test_an_item_without_a_key_has_no_step(typed: Type, item: object) -> None:
    """It cannot be told from the others."""
    with pytest.raises(KeylessItemError):
        item_step(typed, item)


def test_steps_have_the_servers_order() -> None:
    """The value itself, fields, keys, values, positions; numbers by value."""
    steps = [".", "f:a", "f:b", 'k:{"a":9}', 'k:{"a":10}', 'k:{"a":"x"}', "v:2", "v:10", 'v:"a"', "i:2", "i:10"]
    assert sorted(set(steps), key=step_order) == steps


def test_every_served_kind_has_a_type() -> None:
    """Each has metadata, and all its types can be read; reviews are not kept and have none."""
    for info in builtin_resources():
        types = builtin(info.api_version, info.kind)
        assert info.verbs == ("create",) or (
            types and types.root.of("metadata").of("finalizers").shape is FieldShape.SET
        )
    assert builtin("nfd.k8s-sigs.io/v1alpha1", "NodeFeature") is None
    assert builtin("apps.example.com/v1", "DaemonSet") is None
