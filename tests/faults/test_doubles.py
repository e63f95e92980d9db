"""What counts as created twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.doubles import Write, audited, doubles

PODS = "/api/v1/namespaces/a/pods"
EVENTS = "/api/v1/namespaces/default/events"


def _created(path: str, code: int = 201, **body: Any) -> Write:
    return Write("POST", path, code, json.dumps(body).encode())


def _pod(name: str, code: int = 201) -> Write:
    return _created(PODS, code, metadata={"name": name})


def _event(reason: str, number: int) -> Write:
    about = {"kind": "GPUStack", "name": "main"}
    return _created(EVENTS, metadata={"name": f"main.{number}"}, involvedObject=about, reason=reason, message="m")


GENERATED = {"metadata": {"generateName": "x-"}, "spec": {"nodeName": "a"}}
DELETED = Write("DELETE", f"{PODS}/x", 200, b"")
ALL_DELETED = Write("DELETE", PODS, 200, b"")
APPLIED = Write("PATCH", f"{PODS}/x", 201, b"kind: Pod")
STATUS = Write("PATCH", "/apis/gpu-provision.io/v1alpha1/gpustacks/main/status", 200, b"{}")
ASKED = _created("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", spec={})
EVICTED = _created(f"{PODS}/x/eviction", metadata={"name": "x"})


@pytest.mark.parametrize(
    ("writes", "count"),
    [
        pytest.param([_pod("x"), _pod("y")], 0, id="two names"),
        pytest.param([_pod("x"), _pod("x", 409)], 0, id="refused"),
        pytest.param([_pod("x"), _pod("x")], 1, id="one name"),
        pytest.param([_pod("x"), APPLIED, APPLIED], 2, id="one name applied"),
        pytest.param([_pod("x"), DELETED, _pod("x")], 0, id="deleted in between"),
        pytest.param([_pod("x"), ALL_DELETED, _pod("x")], 0, id="all deleted in between"),
        pytest.param([_pod("x"), DELETED._replace(code=409), _pod("x")], 1, id="deletion refused"),
        pytest.param([_created(PODS, **GENERATED)] * 2, 1, id="generated name"),
        pytest.param([_created(PODS, **GENERATED), _created(PODS, **GENERATED | {"spec": {}})], 0, id="others"),
        pytest.param([_event("Ready", 1), _event("Ready", 2)], 1, id="event in a row"),
        pytest.param([_event("Ready", 1), _event("Bad", 2), _event("Ready", 3)], 0, id="event again"),
        pytest.param([_event("Ready", 1), STATUS, _event("Ready", 3)], 0, id="event of another change"),
        pytest.param([_event("Ready", 1), STATUS._replace(code=409), _event("Ready", 3)], 1, id="change refused"),
        pytest.param([ASKED, ASKED, EVICTED, EVICTED], 0, id="no objects"),
    ],
)
def test_objects_created_once_more_are_counted(writes: list[Write], count: int) -> None:
    assert len(doubles(writes)) == count


def test_an_audit_log_tells_what_an_agent_made_and_all_deleted(tmp_path: Path) -> None:
    """Not its dry runs, nor stages before the last, nor what was there before; a line that is half written waits."""

    def line(verb: str, agent: str = "tool", stage: str = "ResponseComplete", query: str = "", **more: Any) -> str:
        uri = f"{PODS}{query}" if verb == "create" else f"{PODS}/x"
        place = {"verb": verb, "userAgent": agent, "stage": stage, "requestURI": uri}
        return json.dumps({**place, "objectRef": {"name": "x"}, "responseStatus": {"code": 201}, **more}) + "\n"

    log = tmp_path / "audit.log"
    log.write_text(line("create"))
    start = log.stat().st_size
    body = {"metadata": {"name": "x"}, "spec": {}}
    with log.open("a") as more:
        more.write(line("create") + line("create", "other") + line("create", query="?dryRun=All") + line("get"))
        more.write(
            line("create", stage="ResponseStarted") + line("delete", "other") + line("create", requestObject=body)
        )
        more.write(line("create")[:20])
    found = [(each.verb, each.path, json.loads(each.body)) for each in audited(log, start, "tool")]
    named = {"metadata": {"name": "x"}}
    assert found == [("POST", PODS, named), ("DELETE", f"{PODS}/x", named), ("POST", PODS, body)]
