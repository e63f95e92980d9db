from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.api.samples import configmap, core, names, pod
from tests.contract.client import Server

LABELS = {"bare": {}, "red": {"color": "red"}, "blue": {"color": "blue", "size": "9"}, "big": {"size": "10"}}
SELECTED = {
    "color=red": ["red"],
    "color==red": ["red"],
    "color!=red": ["bare", "big", "blue"],
    "color in (red,blue)": ["blue", "red"],
    "color notin (red)": ["bare", "big", "blue"],
    "color": ["blue", "red"],
    "!color": ["bare", "big"],
    "size>9": ["big"],
    "size<10": ["blue"],
    "color,size": ["blue"],
    "color=red,size": [],
    "color=": [],
    "": ["bare", "big", "blue", "red"],
}


@pytest.fixture(scope="module")
def labeled(server: Server) -> Iterator[str]:
    """A namespace with ConfigMaps of many labels."""
    made = server.make("/api/v1/namespaces", {"metadata": {"generateName": "contract-"}})["metadata"]["name"]
    for name, labels in LABELS.items():
        server.make(core(made, "configmaps"), configmap(name, labels={**labels, "ours": "true"}))
    yield made
    server.delete(f"/api/v1/namespaces/{made}")


@pytest.mark.parametrize("selector", SELECTED, ids=lambda text: text or "none")
def test_a_label_selector_selects(server: Server, labeled: str, selector: str) -> None:
    both = f"ours,{selector}" if selector else "ours"
    found = server.get(core(labeled, "configmaps") + f"?labelSelector={quote(both)}")
    assert names(found) == SELECTED[selector]


@pytest.mark.parametrize("selector", ["color in red", "color=a b", "=red", "color>x", "a/b/c=d", "color in ("])
def test_a_label_selector_that_makes_no_sense_is_a_bad_request(server: Server, selector: str) -> None:
    answer = server.ask("GET", f"/api/v1/configmaps?labelSelector={quote(selector)}")
    assert (answer.code, answer.reason) == (400, "BadRequest")


def test_a_field_selector_selects_by_name(server: Server, labeled: str) -> None:
    found = server.get(core(labeled, "configmaps") + "?fieldSelector=metadata.name%3Dred")
    assert names(found) == ["red"]


def test_a_field_selector_leaves_a_name_out(server: Server, labeled: str) -> None:
    query = "?labelSelector=ours&fieldSelector=metadata.name!%3Dred"
    assert names(server.get(core(labeled, "configmaps") + query)) == ["bare", "big", "blue"]


def test_a_field_selector_selects_a_namespace(server: Server, labeled: str) -> None:
    query = f"?labelSelector=ours&fieldSelector=metadata.namespace%3D{labeled}"
    assert names(server.get("/api/v1/configmaps" + query)) == ["bare", "big", "blue", "red"]


def test_field_and_label_selectors_both_hold(server: Server, labeled: str) -> None:
    query = "?labelSelector=color%3Dblue&fieldSelector=metadata.name%3Dred"
    assert names(server.get(core(labeled, "configmaps") + query)) == []


@pytest.mark.parametrize(
    "selector",
    [
        "spec.nodeName=contract-nowhere",
        "status.phase=Pending",
        "status.phase!=Running,spec.nodeName=contract-nowhere",
        "spec.restartPolicy=Never",
        "spec.schedulerName=absent",
        "spec.serviceAccountName=default",
    ],
)
def test_pods_are_selected_by_fields(server: Server, namespace: str, selector: str) -> None:
    tolerant = [{"operator": "Exists"}]
    special: dict[str, Any] = {"nodeName": "contract-nowhere", "restartPolicy": "Never", "schedulerName": "absent"}
    server.make(core(namespace, "pods"), pod("chosen", tolerations=tolerant, **special))
    path = core(namespace, "pods") + "?fieldSelector="
    assert "chosen" in names(server.get(path + quote(selector)))
    assert names(server.get(path + quote(selector + ",metadata.name=none"))) == []


def test_pods_without_a_node_are_selected_by_an_empty_name(server: Server, namespace: str) -> None:
    server.make(core(namespace, "pods"), pod("unbound"))
    server.make(
        core(namespace, "pods"), pod("bound", nodeName="contract-nowhere", tolerations=[{"operator": "Exists"}])
    )
    assert names(server.get(core(namespace, "pods") + "?fieldSelector=spec.nodeName%3D")) == ["unbound"]


@pytest.mark.parametrize(
    ("path", "field", "kind"),
    [
        ("/api/v1/pods", "spec.priority", "field label not supported: spec.priority"),
        ("/api/v1/configmaps", "data", 'field label not supported: data|"data" is not a known field selector'),
        ("/apis/apps/v1/daemonsets", "spec.x", 'field label "spec.x" not supported|"spec.x" is not a known field'),
    ],
)
def test_a_field_that_cannot_be_selected_by_is_a_bad_request(server: Server, path: str, field: str, kind: str) -> None:
    answer = server.ask("GET", f"{path}?fieldSelector={field}%3D1")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert any(text in answer.message for text in kind.split("|")), answer.message


def test_events_are_selected_by_the_object_they_are_about(server: Server, namespace: str) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": namespace, "uid": "u-1"}
    for name, uid in (("e1", "u-1"), ("e2", "u-2")):
        body = {"metadata": {"name": name}, "involvedObject": {**about, "uid": uid}, "reason": "Test", "type": "Normal"}
        server.make(core(namespace, "events"), body)
    query = quote("involvedObject.uid=u-1,reason=Test,type=Normal,involvedObject.kind=Pod")
    assert names(server.get(core(namespace, "events") + f"?fieldSelector={query}")) == ["e1"]
