"""Server-side apply: cases/*.yaml, which tests/contract replays on servers, and cases beyond their reach."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.apiserver.fieldmanager import ApplyConflictError, apply_configuration, record_update
from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import (
    SELF,
    FieldSet,
    difference,
    intersection,
    item_step,
    paths,
    sort_fields,
    step_order,
    union,
)
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, FieldShape, Type, builtin_type
from gpu_provision.sandbox.apiserver.resources import builtin_resources
from tests import data_file

Object = dict[str, Any]
CASES: list[Object] = [
    {**case, "file": file.stem}
    for file in sorted(Path(__file__).with_name("cases").glob("*.yaml"))
    for case in data_file.document(file.read_text("utf-8"))
]
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
CONFIG_MAP: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}


def do_step(live: Object | None, step: Object, now: str = NOW) -> Object:
    manager, subresource = step["manager"], step.get("subresource", "")
    if "update" in step:
        return record_update(live, step["update"], manager=manager, subresource=subresource, now=now)
    force = step.get("force", False)
    return apply_configuration(live, step["apply"], manager=manager, force=force, subresource=subresource, now=now)


def without_managed_fields(obj: Object) -> Object:
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name != "managedFields"}}


def owners(obj: Object) -> dict[str, list[str]]:
    return {
        " ".join(filter(None, (one["manager"], one["operation"], one.get("subresource")))): sorted(
            paths(one["fieldsV1"])
        )
        for one in obj["metadata"].get("managedFields", ())
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['file']}: {case['name']}")
def test_a_write_gives_what_a_server_stores_or_refuses(case: Object) -> None:
    """Live object and request do not change, and a second apply changes nothing."""
    live: Object | None = case.get("live")
    for step in case.get("given", ()):
        live = do_step(live, step)
    before, then, when = deepcopy((live, case["when"])), case["then"], case["when"]
    if "conflicts" in then:
        with pytest.raises(ApplyConflictError) as refusal:
            do_step(live, when)
        assert [[who.manager, who.operation, path] for who, path in refusal.value.conflicts] == then["conflicts"]
        assert refusal.value.message == then.get("message", refusal.value.message)
        return
    result = do_step(live, when)
    assert without_managed_fields(result) == then.get("object", without_managed_fields(result))
    if "owners" in then:
        assert owners(result) == {who: sorted(fields) for who, fields in then["owners"].items()}
    if "apply" in when and "object" in then:
        assert do_step(result, when, LATER) == result
    assert (live, when) == before


def test_an_update_with_keyless_items_keeps_the_owners() -> None:
    """An accepted write never fails because of managedFields."""
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s"}}
    live = apply_configuration(None, {**account, "secrets": [{"name": "a"}]}, manager="first", force=False, now=NOW)
    result = record_update(live, {**live, "secrets": [{}]}, manager="editor", now=LATER)
    assert result == {**live, "secrets": [{}]}


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        ([{"name": "x"}, {"name": "x"}], r'containers: duplicate entries for key \[name="x"\]$'),
        (["x"], r"containers: element 0: .* non-map elements$"),
    ],
)
def test_items_that_cannot_be_told_apart_are_refused(containers: list[Any], message: str) -> None:
    """The message names the field."""
    spec = {"template": {"spec": {"containers": containers}}}
    config = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": spec}
    prefix = r": failed to create typed patch object \(/d; apps/v1, Kind=DaemonSet\): \.spec\.template\.spec\."
    with pytest.raises(StatusError, match=prefix + message):
        apply_configuration(None, config, manager="first", force=False, now=NOW)


def field_paths(fields: FieldSet, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for step, node in fields.items():
        if step != SELF:
            if not node or SELF in node:
                yield (*prefix, step)
            yield from field_paths(node, (*prefix, step))


def some_fields(chance: random.Random) -> FieldSet:
    root: FieldSet = {}
    lengths = sorted((chance.randint(1, 3) for _ in range(chance.randint(0, 8))), reverse=True)
    for length in lengths:
        node = root
        for _ in range(length):
            node = node.setdefault(chance.choice(("f:a", "f:b", 'k:{"name":"x"}', 'v:"y"')), {})
        if node:
            node[SELF] = {}
    return sort_fields(root)


@pytest.mark.parametrize(
    ("operation", "arithmetic"), [(union, set.union), (difference, set.difference), (intersection, set.intersection)]
)
def test_field_sets_follow_set_arithmetic(
    operation: Callable[[FieldSet, FieldSet], FieldSet], arithmetic: Callable[..., set[tuple[str, ...]]]
) -> None:
    """In the server's order, without a change of the arguments."""
    for chance in map(random.Random, range(400)):
        left, right = some_fields(chance), some_fields(chance)
        before = deepcopy((left, right))
        result = operation(left, right)
        assert set(field_paths(result)) == arithmetic(set(field_paths(left)), set(field_paths(right)))
        assert repr(result) == repr(sort_fields(result))
        assert (left, right) == before


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
        (Type(FieldShape.SET), 1, "v:1"),
    ],
)
def test_the_step_to_an_item_has_the_servers_form(typed: Type, item: object, step: str) -> None:
    """Clients compare these strings."""
    assert item_step(typed, item) == step


def test_steps_have_the_servers_order() -> None:
    """The value itself, fields, keys, values; numbers by value."""
    steps = [".", "f:a", "f:b", 'k:{"a":9}', 'k:{"a":10}', 'k:{"a":"x"}', "v:2", "v:10", 'v:"a"']
    assert sorted(set(steps), key=step_order) == steps


def test_every_served_kind_has_a_type() -> None:
    """Each type has metadata; reviews are not stored and have none."""
    for info in builtin_resources():
        types = builtin_type(info.api_version, info.kind)
        if info.verbs != ("create",):
            metadata = types.root.field_type("metadata")  # type: ignore[union-attr]
            assert metadata.field_type("finalizers").shape is FieldShape.SET
    assert builtin_type("nfd.k8s-sigs.io/v1alpha1", "NodeFeature") is None
