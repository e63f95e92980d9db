"""The output of kubectl get, beyond tests/contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.resources import builtin_resources
from gpu_provision.sandbox.apiserver.store import StoredObject
from gpu_provision.sandbox.apiserver.tables import (
    OutputForm,
    find_json_path,
    human_duration,
    pod_ready,
    pod_restarts,
    pod_status,
    render_object,
)
from tests import data_file
from tests.sandbox.apiserver.conftest import POD

CASES = data_file.document((Path(__file__).parent / "data" / "pods.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_pods_columns_use_kubectls_words(case: dict[str, Any]) -> None:
    """STATUS, READY and RESTARTS follow Kubernetes' printer."""
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if case.get("deleted") else {}
    inits = [{"name": name} for name in case.get("init", ())]
    pod = {"metadata": metadata, "spec": {**POD, "initContainers": inits}, "status": case["status"]}
    assert [pod_status(pod), pod_ready(pod), pod_restarts(pod)] == case["shows"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (600, "10m"), (10799, "179m"), (10800, "3h"),
     (11100, "3h5m"), (8 * 3600, "8h"), (47 * 3600, "47h"), (48 * 3600, "2d"), (51 * 3600, "2d3h"), (8 * 86400, "8d"),
     (400 * 86400, "400d"), (740 * 86400, "2y10d"), (9 * 365 * 86400, "9y"), (-5, "<invalid>")],
)  # fmt: skip
def test_durations_are_short(seconds: float, text: str) -> None:
    """The steps are those of Kubernetes."""
    assert human_duration(seconds) == text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".spec.size", 3),
        ('.status.conditions[?(@.type=="Ready")].status', "True"),
        (r".metadata.annotations.example\.org/made-by", "me"),
        (".missing.part", None),
        (".spec[", None),
    ],
)
def test_printer_columns_find_their_values(path: str, value: Any) -> None:
    """The supported part of JSONPath; other paths give nothing."""
    metadata = {"annotations": {"example.org/made-by": "me"}}
    obj = {"metadata": metadata, "spec": {"size": 3}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert find_json_path(obj, path) == value


def test_no_cell_fails_on_an_object_that_has_but_a_name() -> None:
    bare = StoredObject({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}}, 1)
    for info in builtin_resources():
        table = json.loads(render_object(bare, info, OutputForm("Table")))
        assert len(table["rows"][0]["cells"]) == len(table["columnDefinitions"])
