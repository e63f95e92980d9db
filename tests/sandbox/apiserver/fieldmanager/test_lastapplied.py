"""kubectl's change from client-side to server-side apply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager import ApplyConflict, applied, updated
from gpu_provision.sandbox.apiserver.fieldmanager.entries import ANNOTATION

Object = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


def config_map(value: str, **annotations: str) -> Object:
    metadata: Object = {"name": "c", **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": value}}


def client_side_applied(value: str) -> Object:
    obj = config_map(value, **{ANNOTATION: json.dumps(config_map(value))})
    return updated(None, obj, manager="kubectl-client-side-apply", now=NOW)


def test_kubectl_takes_over_what_it_applied_on_the_client_side() -> None:
    """The fields in the annotation are kubectl's own, so changing them is no conflict; the annotation follows."""
    result = applied(client_side_applied("1"), config_map("2"), manager="kubectl", force=False, now=NOW)
    assert result["data"] == {"a": "2"}
    assert json.loads(result["metadata"]["annotations"][ANNOTATION])["data"] == {"a": "2"}


def test_another_manager_does_not_take_over() -> None:
    """The annotation speaks for kubectl only."""
    with pytest.raises(ApplyConflict):
        applied(client_side_applied("1"), config_map("2"), manager="helm", force=False, now=NOW)


def test_a_field_that_somebody_changed_since_is_a_conflict() -> None:
    """What differs from the annotation is no longer kubectl's."""
    live = client_side_applied("1")
    edited = updated(live, {**live, "data": {"a": "9"}}, manager="editor", now=NOW)
    with pytest.raises(ApplyConflict, match=r'conflict with "editor" using v1: \.data\.a$'):
        applied(edited, config_map("2"), manager="kubectl", force=False, now=NOW)


@pytest.mark.parametrize("text", ["{", "[]", '{"apiVersion": "v2"}'])
def test_an_annotation_that_cannot_be_read_allows_nothing(text: str) -> None:
    """A broken annotation is no licence."""
    live = client_side_applied("1")
    live["metadata"]["annotations"][ANNOTATION] = text
    with pytest.raises(ApplyConflict):
        applied(live, config_map("2"), manager="kubectl", force=False, now=NOW)
