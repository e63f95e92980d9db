"""Directives of strategic patches and bad JSON patches; tests/contract has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.apiserver.fieldmanager.schema import type_of
from gpu_provision.sandbox.apiserver.rest import json_patch, strategic_merge_patch
from gpu_provision.sandbox.objects import deep_copy
from tests import data_file

CASES = data_file.document((Path(__file__).parent / "data" / "patches.yaml").read_text())
POD_TYPE = type_of({"apiVersion": "v1", "kind": "Pod"}, None).root


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_strategic_patch_gives_what_kubernetes_gives(case: dict[str, Any]) -> None:
    """The target, which may be the stored object, does not change."""
    before = deep_copy(case["target"])
    assert strategic_merge_patch(case["target"], case["patch"], POD_TYPE) == case["result"]
    assert case["target"] == before


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({}, 400),
        ([{"op": "fly", "path": "/a"}], 400),
        ([{"op": "add", "path": "/a"}], 400),
        ([{"op": "add", "path": "a", "value": 1}], 400),
        (["add"], 400),
        ([{"op": "remove", "path": "/missing"}], 422),
        ([{"op": "test", "path": "/a", "value": 2}], 422),
        ([{"op": "replace", "path": "/list/7", "value": 2}], 422),
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(patch: Any, code: int) -> None:
    """400 for an invalid patch, 422 for one that fails on the object."""
    with pytest.raises(StatusError) as refusal:
        json_patch({"a": 1, "list": [1]}, patch)
    assert refusal.value.code == code
