from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.contract.api.samples import configmap, core, names
from tests.contract.client import APPLY, MERGE, Object, Server, until

USER = "gpu-provision"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1"
Grant = Callable[..., None]


@pytest.fixture
def stranger(server: Server) -> Iterator[Server]:
    """A user without any right."""
    if server.user is None:
        pytest.skip("this cluster has no user to spare")
    asked = server.as_user(USER)
    yield asked
    asked.close()


@pytest.fixture
def grant(server: Server, namespace: str) -> Iterator[Grant]:
    """Gives the user rights in the test's namespace, or everywhere, until the end of the test."""
    name = f"contract-{uuid.uuid4().hex[:8]}"

    def given(*rules: Object) -> None:
        server.make(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": [*rules]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}
        body = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        server.make(f"{RBAC}/namespaces/{namespace}/rolebindings", body)

    yield given
    server.delete(f"{RBAC}/clusterroles/{name}")


def rule(*verbs: str, resource: str, group: str = "", **more: object) -> Object:
    return {"verbs": [*verbs], "apiGroups": [group], "resources": [resource], **more}


def may(asked: Server, verb: str, resource: str, **attributes: str) -> bool:
    wanted = {"verb": verb, "resource": resource, **attributes}
    body = {"spec": {"resourceAttributes": wanted}}
    answer = asked.ask("POST", f"{REVIEWS}/selfsubjectaccessreviews", body)
    assert answer.code == 201
    return bool(answer.body["status"]["allowed"])


def test_an_unknown_token_is_not_accepted(server: Server) -> None:
    asked = server.with_access(replace(server.access, token="wrong", certificate=b"", key=b""))  # noqa: S106 - no secret
    answer = asked.ask("GET", "/api/v1/pods")
    asked.close()
    assert (answer.code, answer.reason, answer.message) == (401, "Unauthorized", "Unauthorized")


def test_a_wrong_token_is_refused_even_for_public_paths(server: Server) -> None:
    asked = server.with_access(replace(server.access, token="wrong", certificate=b"", key=b""))  # noqa: S106 - no secret
    answer = asked.ask("GET", "/version")
    asked.close()
    assert (answer.code, answer.reason) == (401, "Unauthorized")


@pytest.fixture
def anonymous(server: Server) -> Iterator[Server]:
    """A client without a token."""
    asked = server.with_access(replace(server.access, token="", certificate=b"", key=b""))
    yield asked
    asked.close()


def test_a_client_without_a_token_is_anonymous(anonymous: Server) -> None:
    answer = anonymous.ask("GET", "/api/v1/pods")
    assert (answer.code, answer.reason) == (403, "Forbidden")
    wanted = (
        'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" at the cluster scope'
    )
    assert answer.message == wanted


@pytest.mark.parametrize("header", ["Bearer ", "Basic YWRtaW46YWRtaW4="])
def test_what_is_no_token_counts_as_none(anonymous: Server, header: str) -> None:
    assert anonymous.ask("GET", "/api/v1/pods", headers={"Authorization": header}).code == 403


def test_who_has_no_token_may_not_look_around(anonymous: Server) -> None:
    answer = anonymous.ask("GET", "/api")
    assert (answer.code, answer.message) == (403, 'forbidden: User "system:anonymous" cannot get path "/api"')


@pytest.mark.parametrize("path", ["/version", "/healthz", "/livez", "/readyz"])
def test_who_has_no_token_may_ask_for_version_and_health(anonymous: Server, path: str) -> None:
    assert anonymous.ask("GET", path).code == 200


@pytest.mark.parametrize("path", ["/version", "/api", "/apis", "/openapi/v2"])
def test_every_user_with_a_token_may_discover(stranger: Server, path: str) -> None:
    assert stranger.ask("GET", path).code == 200


@pytest.mark.parametrize(
    ("verb", "path", "text"),
    [
        ("GET", "/api/v1/pods", 'pods is forbidden: User "{0}" cannot list resource "pods" in API group "" {1}'),
        (
            "GET",
            "/api/v1/nodes/x",
            'nodes "x" is forbidden: User "{0}" cannot get resource "nodes" in API group "" {1}',
        ),
    ],
)
def test_a_right_that_is_missing_is_named(stranger: Server, verb: str, path: str, text: str) -> None:
    answer = stranger.ask(verb, path)
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert answer.message == text.format(USER, "at the cluster scope")


def test_a_missing_right_names_its_namespace(stranger: Server, namespace: str) -> None:
    answer = stranger.ask("POST", core(namespace, "configmaps"), configmap("one"))
    wanted = f'configmaps is forbidden: User "{USER}" cannot create resource "configmaps" in API group "" '
    assert answer.message == f'{wanted}in the namespace "{namespace}"'


def test_a_watch_is_refused_before_it_begins(stranger: Server) -> None:
    answer = stranger.ask("GET", "/api/v1/pods?watch=true&timeoutSeconds=1")
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert "cannot watch resource" in answer.message


def test_a_subresource_is_a_right_of_its_own(stranger: Server, namespace: str) -> None:
    answer = stranger.ask("GET", core(namespace, "pods", "p") + "/log")
    assert 'cannot get resource "pods/log"' in answer.message


def test_a_binding_gives_rights_in_its_namespace(
    server: Server, stranger: Server, namespace: str, grant: Grant
) -> None:
    grant(rule("get", "list", resource="configmaps"))
    until(lambda: stranger.ask("GET", core(namespace, "configmaps")).code == 200)
    assert stranger.ask("GET", "/api/v1/configmaps").code == 403
    assert stranger.ask("POST", core(namespace, "configmaps"), configmap("one")).code == 403
    assert server.ask("GET", "/api/v1/configmaps").code == 200


def test_a_rule_may_name_its_objects(server: Server, stranger: Server, namespace: str, grant: Grant) -> None:
    server.make(core(namespace, "configmaps"), configmap("one"))
    grant(rule("get", "patch", resource="configmaps", resourceNames=["one"]))
    until(lambda: stranger.ask("GET", core(namespace, "configmaps", "one")).code == 200)
    assert stranger.ask("GET", core(namespace, "configmaps", "two")).code == 403
    assert stranger.ask("GET", core(namespace, "configmaps")).code == 403


def test_a_rule_that_names_an_object_allows_its_list_and_watch(
    server: Server, stranger: Server, namespace: str, grant: Grant
) -> None:
    """The controller follows its lease, and the secrets that stacks name, with no more than that."""
    server.make(core(namespace, "configmaps"), configmap("one"))
    grant(rule("list", "watch", resource="configmaps", resourceNames=["one"]))
    path = core(namespace, "configmaps")
    until(lambda: stranger.ask("GET", f"{path}?fieldSelector=metadata.name=one").code == 200)
    both = f"{path}?fieldSelector=metadata.name%3Done,metadata.namespace%3D{namespace}"
    assert names(stranger.get(both)) == ["one"]
    with stranger.watch(f"{both}&resourceVersion=0") as events:
        assert events.next().name == "one"
    assert stranger.ask("GET", path).code == 403
    assert stranger.ask("GET", f"{path}?fieldSelector=metadata.name=two").code == 403
    assert stranger.ask("GET", f"{path}?fieldSelector=metadata.name!=one").code == 403


def test_an_apply_that_creates_needs_the_right_to_create(stranger: Server, namespace: str, grant: Grant) -> None:
    """To patch alone changes what is there. Not every server says more than that it is forbidden."""
    grant(rule("get", "patch", resource="configmaps"))
    until(lambda: may(stranger, "patch", "configmaps", namespace=namespace))
    path = core(namespace, "configmaps", "one") + "?fieldManager=me"
    answer = stranger.ask("PATCH", path, configmap("one"), APPLY)
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert answer.message.startswith('configmaps "one" is forbidden: ')


def test_granting_more_than_one_holds_is_refused(stranger: Server, namespace: str, grant: Grant) -> None:
    grant(rule("create", "patch", resource="roles", group="rbac.authorization.k8s.io"))
    until(lambda: may(stranger, "create", "roles", namespace=namespace, group="rbac.authorization.k8s.io"))
    body = {"metadata": {"name": "more"}, "rules": [rule("get", resource="secrets")]}
    answer = stranger.ask("POST", f"{RBAC}/namespaces/{namespace}/roles", body)
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert "attempting to grant RBAC permissions not currently held" in answer.message


def test_who_only_lets_go_of_an_owner_grants_nothing(
    server: Server, stranger: Server, namespace: str, grant: Grant
) -> None:
    """Nor does who changes the books of who wrote what; a label is another matter."""
    rbac, role = "rbac.authorization.k8s.io", {"kind": "Role", "name": "theirs"}
    path = f"{RBAC}/namespaces/{namespace}"
    server.make(f"{path}/roles", {"metadata": {"name": "theirs"}, "rules": [rule("get", resource="secrets")]})
    uid = server.make(core(namespace, "configmaps"), configmap("owner"))["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    metadata = {"name": "theirs", "ownerReferences": [owner]}
    server.make(f"{path}/rolebindings", {"metadata": metadata, "roleRef": {"apiGroup": rbac, **role}, "subjects": []})
    grant(rule("get", "patch", "delete", resource="rolebindings", group=rbac))
    until(lambda: may(stranger, "patch", "rolebindings", namespace=namespace, group=rbac))
    let_go = {"metadata": {"ownerReferences": [], "managedFields": [{}]}}
    answer = stranger.ask("PATCH", f"{path}/rolebindings/theirs", let_go, MERGE)
    assert answer.code == 200, answer
    labelled = stranger.ask("PATCH", f"{path}/rolebindings/theirs", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    assert (labelled.code, labelled.reason) == (403, "Forbidden")


def test_an_administrator_may_everything(server: Server) -> None:
    assert may(server, "delete", "nodes")
    assert may(server, "patch", "anything", group="of.example.org", namespace="default")


def test_who_has_no_right_is_told_so(stranger: Server) -> None:
    assert not may(stranger, "get", "pods", namespace="default")


def test_a_review_follows_the_rules(stranger: Server, namespace: str, grant: Grant) -> None:
    grant(rule("get", resource="pods/log"), rule("patch", resource="configmaps", resourceNames=["one"]))
    until(lambda: may(stranger, "get", "pods", subresource="log", namespace=namespace))
    assert not may(stranger, "get", "pods", namespace=namespace)
    assert may(stranger, "patch", "configmaps", name="one", namespace=namespace)
    assert not may(stranger, "patch", "configmaps", namespace=namespace)
    assert not may(stranger, "get", "pods", subresource="log", namespace="default")


def rules_of(asked: Server, namespace: str) -> Object:
    body = {"spec": {"namespace": namespace}}
    answer = asked.ask("POST", f"{REVIEWS}/selfsubjectrulesreviews", body)
    assert answer.code == 201
    status: Object = answer.body["status"]
    return status


def test_an_administrators_rules_are_stars(server: Server) -> None:
    status = rules_of(server, "default")
    assert {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]} in status["resourceRules"]
    assert {"verbs": ["*"], "nonResourceURLs": ["*"]} in status["nonResourceRules"]
    assert status["incomplete"] is False


def test_a_users_rules_are_what_bindings_give(stranger: Server, namespace: str, grant: Grant) -> None:
    wanted = rule("get", "list", resource="pods", resourceNames=["one"])
    assert wanted not in rules_of(stranger, namespace)["resourceRules"]
    grant(wanted)
    until(lambda: wanted in rules_of(stranger, namespace)["resourceRules"])
    assert wanted not in rules_of(stranger, "default")["resourceRules"]


def test_every_user_may_review_their_own_access(stranger: Server) -> None:
    """Two rules of the cluster itself: reviews of oneself, and discovery."""
    status = rules_of(stranger, "default")
    reviews = [row for row in status["resourceRules"] if row["apiGroups"] == ["authorization.k8s.io"]]
    assert {*reviews[0]["resources"]} == {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}
    assert any("/apis/*" in row["nonResourceURLs"] for row in status["nonResourceRules"])


def test_rules_are_those_of_a_namespace(server: Server) -> None:
    answer = server.ask("POST", f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {}})
    assert (answer.code, answer.message) == (400, "no namespace on request")


def test_an_administrator_asks_for_others(server: Server) -> None:
    attributes = {"verb": "get", "resource": "pods"}
    body = {"spec": {"user": "another", "groups": ["system:masters"], "resourceAttributes": attributes}}
    found = server.ask("POST", f"{REVIEWS}/subjectaccessreviews", body)
    assert (found.code, found.body["status"]["allowed"]) == (201, True)
