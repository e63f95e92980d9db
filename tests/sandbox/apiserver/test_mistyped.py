"""Values of another type than their field's are refused, as real API servers refuse them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager.schema import builtin
from gpu_provision.sandbox.apiserver.strictness import _mistyped


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"data": {"a": 9}}, "cannot unmarshal number into Go struct field ConfigMap.data of type string"),
        ({"data": {"a": ["1"]}}, "cannot unmarshal array into Go struct field ConfigMap.data of type string"),
        ({"immutable": "yes"}, "cannot unmarshal string into Go struct field ConfigMap.immutable of type bool"),
        ({"data": {"a": "9"}, "immutable": True, "metadata": {"creationTimestamp": None}}, None),
    ],
    ids=json.dumps,
)
def test_the_first_value_of_a_wrong_type_is_named(body: dict[str, Any], wrong: str | None) -> None:
    types = builtin("v1", "ConfigMap")
    assert types
    assert next(_mistyped(body, types.root, "ConfigMap"), None) == wrong
