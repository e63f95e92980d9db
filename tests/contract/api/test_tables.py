from __future__ import annotations

import pytest

from tests.contract.api.samples import apps, configmap, core, pod, workload
from tests.contract.client import Object, Server

TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
COLUMNS = {
    "/api/v1/configmaps": (["Name", "Data", "Age"], []),
    "/api/v1/namespaces": (["Name", "Status", "Age"], []),
    "/api/v1/nodes": (
        ["Name", "Status", "Roles", "Age", "Version"],
        ["Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"],
    ),
    "/api/v1/pods": (
        ["Name", "Ready", "Status", "Restarts", "Age"],
        ["IP", "Node", "Nominated Node", "Readiness Gates"],
    ),
    "/api/v1/services": (["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age"], ["Selector"]),
    "/apis/apps/v1/daemonsets": (
        ["Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age"],
        ["Containers", "Images", "Selector"],
    ),
    "/apis/apps/v1/deployments": (
        ["Name", "Ready", "Up-to-date", "Available", "Age"],
        ["Containers", "Images", "Selector"],
    ),
}


def table(server: Server, path: str) -> Object:
    found: Object = server.ask("GET", path, accept=TABLE).body
    return found


@pytest.mark.parametrize("path", COLUMNS, ids=lambda path: path.rpartition("/")[2])
def test_a_table_has_the_columns_that_kubectl_shows(server: Server, path: str) -> None:
    columns = table(server, path)["columnDefinitions"]
    narrow = [column["name"] for column in columns if column["priority"] == 0]
    wide = [column["name"] for column in columns if column["priority"] == 1]
    assert (narrow, wide) == COLUMNS[path]


def test_a_table_names_itself_and_the_version_to_watch_from(server: Server) -> None:
    found = table(server, "/api/v1/namespaces")
    assert (found["kind"], found["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert int(found["metadata"]["resourceVersion"]) > 0


def test_a_row_has_cells_and_the_objects_metadata(server: Server, namespace: str) -> None:
    server.make(core(namespace, "configmaps"), configmap("one", {"a": "1", "b": "2"}))
    found = table(server, core(namespace, "configmaps") + "?fieldSelector=metadata.name%3Done")
    (row,) = found["rows"]
    assert row["cells"][:2] == ["one", 2]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert "data" not in row["object"]


@pytest.mark.parametrize(("include", "keys"), [("None", set()), ("Object", {"data", "kind", "metadata"})])
def test_a_row_carries_what_the_caller_wants(server: Server, namespace: str, include: str, keys: set[str]) -> None:
    server.make(core(namespace, "configmaps"), configmap("one", {"a": "1"}))
    query = f"?fieldSelector=metadata.name%3Done&includeObject={include}"
    (row,) = table(server, core(namespace, "configmaps") + query)["rows"]
    assert keys <= {*(row.get("object") or {})}
    assert keys or row.get("object") is None


def test_one_object_comes_as_a_table_of_one_row(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("p"))
    found = table(server, core(namespace, "pods", "p"))
    (row,) = found["rows"]
    assert row["cells"][:3] == ["p", "0/1", "Pending"]


def test_a_daemonset_without_pods_shows_zeros_and_its_selector(server: Server, namespace: str) -> None:
    server.make(apps(namespace, "daemonsets"), workload("DaemonSet", "ds"))
    (row,) = table(server, apps(namespace, "daemonsets"))["rows"]
    assert row["cells"][:7] == ["ds", 0, 0, 0, 0, 0, "contract/absent=has-it"]


def test_a_service_shows_its_ports(server: Server, namespace: str) -> None:
    body = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}, {"port": 53, "name": "d", "protocol": "UDP"}]}}
    body["spec"]["ports"][0]["name"] = "h"  # type: ignore[index]
    made = server.make(core(namespace, "services"), body)
    (row,) = table(server, core(namespace, "services"))["rows"]
    assert row["cells"][:5] == ["s", "ClusterIP", made["spec"]["clusterIP"], "<none>", "80/TCP,53/UDP"]


def test_a_server_that_has_no_table_answers_with_the_object(server: Server) -> None:
    """Clients name both forms."""
    accept = f"application/json;as=Table;g=meta.k8s.io;v=v2,{TABLE},application/json"
    assert server.ask("GET", "/api/v1/namespaces/default", accept=accept).body["kind"] == "Table"
