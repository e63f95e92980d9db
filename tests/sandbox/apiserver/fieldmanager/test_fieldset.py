"""Sets of paths against the plain set arithmetic of Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager.fields import (
    SELF,
    FieldSet,
    difference,
    intersection,
    normalized,
    paths,
    union,
)

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
    return normalized(root)


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
def test_an_operation_gives_the_paths_that_set_arithmetic_gives(
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
