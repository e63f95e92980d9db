from __future__ import annotations

import copy
import uuid
from pathlib import Path

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager import ApplyConflictError, apply_configuration, record_update
from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import paths
from tests import data_file
from tests.contract.api.samples import apps, core
from tests.contract.client import Answer, Object, Server

CASES = Path(__file__).parents[2] / "sandbox/apiserver/fieldmanager/cases"
PLURALS = {"ConfigMap": "configmaps", "Service": "services", "DaemonSet": "daemonsets"}
NOW = "2026-01-01T00:00:00Z"


def comparable() -> list[Object]:
    """Return the cases whose objects can be created by requests."""
    cases = [
        {**case, "file": file.stem}
        for file in sorted(CASES.glob("*.yaml"))
        for case in data_file.document(file.read_text("utf-8"))
    ]
    return [case for case in cases if "live" not in case and kind_of(case) in PLURALS and not uses_parts(case)]


def steps_of(case: Object) -> list[Object]:
    steps = [*case.get("given", ()), case["when"]]
    return [{**step, key: complete_object(step[key])} for step in steps for key in ("apply", "update") if key in step]


def complete_object(body: Object) -> Object:
    """Return an object with the required fields of its kind that the cases omit.

    A pod becomes the pod of a DaemonSet, which may change.
    """
    full = copy.deepcopy(body)
    full["metadata"].pop("namespace", None)
    if body["kind"] == "Pod":
        full |= {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"template": {"spec": full.get("spec", {})}}}
    if full["kind"] == "DaemonSet":
        spec = full.setdefault("spec", {})
        spec.setdefault("selector", {"matchLabels": {"app": "x"}})
        template = spec.setdefault("template", {})
        template.setdefault("metadata", {}).setdefault("labels", spec["selector"]["matchLabels"])
        for container in template.setdefault("spec", {}).setdefault("containers", [{"name": "filler"}]):
            container.setdefault("image", "example.org/x:1")
    return full


def kind_of(case: Object) -> str:
    first = steps_of(case)[0]
    return str((first.get("apply") or first["update"])["kind"])


def uses_parts(case: Object) -> bool:
    return any(step.get("subresource") for step in steps_of(case))


def version_of(case: Object) -> tuple[int, int]:
    major, minor = str(case.get("newer", "1.0")).split(".")
    return int(major), int(minor)


def send_step(server: Server, collection: str, name: str, step: Object) -> Answer:
    body = step.get("apply") or step["update"]
    body = {**body, "metadata": {**body["metadata"], "name": name}}
    path = f"{collection}/{name}"
    if "apply" in step:
        return server.apply(path, body, manager=step["manager"], force=step.get("force", False))
    query = f"?fieldManager={step['manager']}"
    if server.is_gone(path):
        return server.ask("POST", collection + query, body)
    return server.ask("PUT", path + query, body)


def expected_result(live: Object | None, step: Object) -> Object | str:
    """Return the result of one step without a server: the object, or the text of the conflict."""
    if "update" in step:
        return record_update(live, step["update"], manager=step["manager"], now=NOW)
    try:
        return apply_configuration(
            live, step["apply"], manager=step["manager"], force=step.get("force", False), now=NOW
        )
    except ApplyConflictError as refusal:
        return refusal.message


def appliers(obj: Object) -> dict[str, list[str]]:
    """Return the fields of each applier; entries of updates also have the server's defaults."""
    entries = obj["metadata"].get("managedFields", ())
    return {entry["manager"]: sorted(paths(entry["fieldsV1"])) for entry in entries if entry["operation"] == "Apply"}


@pytest.mark.parametrize("case", comparable(), ids=lambda case: f"{case['file']}: {case['name']}")
def test_owners_and_conflicts_of_a_case_are_those_of_the_rules(server: Server, namespace: str, case: Object) -> None:
    """The cases of the field manager's unit tests, step by step on a server."""
    if not server.at_least(*version_of(case)):
        pytest.skip(f"servers before {case['newer']} do otherwise")
    kind, name = kind_of(case), f"case-{uuid.uuid4().hex[:6]}"
    collection = (apps if kind == "DaemonSet" else core)(namespace, PLURALS[kind])
    live: Object | None = None
    for step in steps_of(case):
        answer, wanted = send_step(server, collection, name, step), expected_result(live, step)
        if isinstance(wanted, str):
            assert answer.message == wanted
        else:
            assert answer.code in (200, 201), answer
            assert appliers(answer.body) == appliers(wanted)
            live = wanted
