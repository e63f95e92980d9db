from __future__ import annotations

import pytest

from tests.contract.client import Server

SERVED = {
    "/api/v1": {
        "configmaps": ("ConfigMap", True),
        "events": ("Event", True),
        "namespaces": ("Namespace", False),
        "nodes": ("Node", False),
        "pods": ("Pod", True),
        "secrets": ("Secret", True),
        "serviceaccounts": ("ServiceAccount", True),
        "services": ("Service", True),
    },
    "/apis/apiextensions.k8s.io/v1": {"customresourcedefinitions": ("CustomResourceDefinition", False)},
    "/apis/apps/v1": {
        "controllerrevisions": ("ControllerRevision", True),
        "daemonsets": ("DaemonSet", True),
        "deployments": ("Deployment", True),
        "replicasets": ("ReplicaSet", True),
        "statefulsets": ("StatefulSet", True),
    },
    "/apis/batch/v1": {"jobs": ("Job", True)},
    "/apis/coordination.k8s.io/v1": {"leases": ("Lease", True)},
    "/apis/node.k8s.io/v1": {"runtimeclasses": ("RuntimeClass", False)},
    "/apis/rbac.authorization.k8s.io/v1": {
        "clusterroles": ("ClusterRole", False),
        "clusterrolebindings": ("ClusterRoleBinding", False),
        "roles": ("Role", True),
        "rolebindings": ("RoleBinding", True),
    },
    "/apis/scheduling.k8s.io/v1": {"priorityclasses": ("PriorityClass", False)},
}
ORDINARY = {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
NOT_ALL_AT_ONCE = ("namespaces", "services")  # Services can since 1.23


def test_the_core_group_has_version_v1(server: Server) -> None:
    found = server.get("/api")
    assert found["kind"] == "APIVersions"
    assert found["versions"] == ["v1"]


def test_the_list_of_groups_names_versions_and_the_preferred_one(server: Server) -> None:
    groups = {group["name"]: group for group in server.get("/apis")["groups"]}
    assert {path.split("/")[2] for path in SERVED if path.startswith("/apis/")} <= groups.keys()
    assert groups["apps"]["preferredVersion"] == {"groupVersion": "apps/v1", "version": "v1"}
    assert {"groupVersion": "apps/v1", "version": "v1"} in groups["apps"]["versions"]


def test_a_group_describes_itself(server: Server) -> None:
    found = server.get("/apis/apps")
    assert (found["kind"], found["name"]) == ("APIGroup", "apps")


@pytest.mark.parametrize("path", SERVED, ids=lambda path: path.strip("/"))
def test_a_group_version_lists_its_resources(server: Server, path: str) -> None:
    found = server.get(path)
    assert found["kind"] == "APIResourceList"
    resources = {resource["name"]: resource for resource in found["resources"]}
    for name, (kind, namespaced) in SERVED[path].items():
        assert (resources[name]["kind"], resources[name]["namespaced"]) == (kind, namespaced)
        missing = ORDINARY - {*resources[name]["verbs"]}
        assert missing <= ({"deletecollection"} if name in NOT_ALL_AT_ONCE else set())


def test_subresources_are_listed_beside_their_resources(server: Server) -> None:
    resources = {resource["name"]: resource for resource in server.get("/api/v1")["resources"]}
    assert {"pods/status", "pods/log", "pods/eviction", "pods/binding", "nodes/status", "namespaces/finalize"} <= {
        *resources
    }
    assert resources["pods/eviction"]["kind"] == "Eviction"
    assert resources["pods/log"]["verbs"] == ["get"]


def test_short_names_are_listed(server: Server) -> None:
    resources = {resource["name"]: resource for resource in server.get("/apis/apps/v1")["resources"]}
    assert resources["daemonsets"]["shortNames"] == ["ds"]
    assert "all" in resources["daemonsets"]["categories"]


def test_the_core_version_has_no_group_in_its_group_version(server: Server) -> None:
    assert server.get("/api/v1")["groupVersion"] == "v1"


def test_an_unknown_group_is_not_found_as_text(server: Server) -> None:
    """A path below no known group is no resource, so there is no Status."""
    answer = server.ask("GET", "/apis/none.example.org/v1")
    assert answer.code == 404
    assert answer.body == "404 page not found\n"


def test_an_unknown_resource_of_a_known_group_is_a_status(server: Server) -> None:
    answer = server.ask("GET", "/apis/apps/v1/nothing")
    assert (answer.code, answer.reason) == (404, "NotFound")
    assert answer.message == "the server could not find the requested resource"


def test_the_root_lists_paths(server: Server) -> None:
    paths = server.get("/")["paths"]
    assert {"/api", "/api/v1", "/apis", "/apis/apps/v1", "/healthz", "/version"} <= {*paths}
