"""What kubectl get prints."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver import cells as podcells
from gpu_provision.sandbox.apiserver.cells import human_duration, node_roles, node_status, selector_text, service_ports
from gpu_provision.sandbox.apiserver.columns import COLUMNS
from gpu_provision.sandbox.apiserver.resources import builtin
from gpu_provision.sandbox.apiserver.tables import found
from tests import data_file
from tests.sandbox.apiserver.conftest import POD, Cluster, Running

CASES = data_file.document((Path(__file__).parent / "data" / "pods.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_pods_columns_use_kubectls_words(case: dict[str, Any]) -> None:
    """STATUS, READY and RESTARTS follow the rules of Kubernetes' printer."""
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if case.get("deleted") else {}
    inits = [{"name": name} for name in case.get("init", ())]
    pod = {"metadata": metadata, "spec": {**POD, "initContainers": inits}, "status": case["status"]}
    assert [podcells.status(pod), podcells.ready(pod), podcells.restarts(pod)] == case["shows"]


def test_restarts_tell_when_the_last_one_was() -> None:
    """The time is that of the last end of a container."""
    ended = (dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    row = {
        "name": "main",
        "restartCount": 3,
        "state": {"running": {}},
        "lastState": {"terminated": {"finishedAt": ended}},
    }
    pod = {"metadata": {}, "spec": POD, "status": {"phase": "Running", "containerStatuses": [row]}}
    assert podcells.restarts(pod).startswith("3 (5m")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (600, "10m"), (10799, "179m"), (10800, "3h"),
     (11100, "3h5m"), (8 * 3600, "8h"), (47 * 3600, "47h"), (48 * 3600, "2d"), (51 * 3600, "2d3h"), (8 * 86400, "8d"),
     (400 * 86400, "400d"), (740 * 86400, "2y10d"), (9 * 365 * 86400, "9y"), (-5, "<invalid>")],
)  # fmt: skip
def test_durations_are_short(seconds: float, text: str) -> None:
    """The steps are those of Kubernetes."""
    assert human_duration(seconds) == text


def test_texts_of_nodes_services_and_selectors() -> None:
    """A few cells that people look at every day."""
    ready = {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}, "spec": {"unschedulable": True}}
    ready["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}  # type: ignore[dict-item]
    assert node_status(ready) == "Ready,SchedulingDisabled"
    assert node_roles(ready) == "control-plane"
    ports = [{"port": 80, "protocol": "TCP"}, {"port": 90, "nodePort": 30001, "protocol": "UDP"}]
    assert service_ports({"spec": {"ports": ports}}) == "80/TCP,90:30001/UDP"
    assert (
        selector_text({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}) == "a=b,c"
    )


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".spec.size", [3]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".spec.list[0]", ["a"]),
        (".spec.list[*]", ["a", "b"]),
        (".metadata.labels.a\\.b/c", ["d"]),
        (".metadata.labels['a.b/c']", ["d"]),
        (".missing.part", []),
        (".spec[", []),
    ],
)
def test_printer_columns_of_custom_resources_find_their_values(path: str, values: list[Any]) -> None:
    """The part of JSONPath that definitions use; what cannot be read shows nothing."""
    obj = {
        "metadata": {"labels": {"a.b/c": "d"}},
        "spec": {"size": 3, "list": ["a", "b"]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert found(obj, path) == values


def test_every_table_belongs_to_a_resource_that_is_served() -> None:
    """A typing mistake in the table of columns would go unseen otherwise."""
    assert set(COLUMNS) <= {info.storage for info in builtin()}


def test_a_list_comes_as_a_table_to_who_asks(server: Running) -> None:
    """Rows carry metadata, the whole object, or nothing, as includeObject says."""
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    path = "/api/v1/namespaces?fieldSelector=metadata.name%3Ddefault"
    for include, kind in (("", "PartialObjectMetadata"), ("&includeObject=Object", "Namespace")):
        table = server.ask("GET", path + include, accept=accept).body
        assert (table["kind"], [row["name"] for row in table["columnDefinitions"]]) == (
            "Table",
            ["Name", "Status", "Age"],
        )
        [row] = table["rows"]
        assert (row["cells"][:2], row["object"]["kind"]) == (["default", "Active"], kind)
    nothing = server.ask("GET", path + "&includeObject=None", accept=accept).body
    assert nothing["rows"][0]["object"] is None


def test_every_builtin_resource_has_a_row(cluster: Cluster) -> None:
    """No cell function fails on an object that has nothing but a name."""
    bare = {"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    from gpu_provision.sandbox.apiserver.columns import value  # noqa: PLC0415 - the subject of this test

    for storage, columns in COLUMNS.items():
        cells = [value(column, dict(bare)) for column in columns]
        assert len(cells) == len(columns), storage
    assert cluster.store.version
