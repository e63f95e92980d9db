from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_provision import render
from gpu_provision.inventory.document import read_source
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.operator.crd import CRD_NAME, definition, spec_schema
from gpu_provision.operator.stack import FINALIZER, STACK, inventory_of, stack_of
from tests import data_file
from tests.contract.api.definitions import DEFINITIONS, is_established
from tests.contract.client import MERGE, Object, Server, until

GOOD = Path(__file__).parents[2] / "inventory/good"
STACKS = f"/apis/{STACK.api_version}/gpustacks"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
POOL = {"gpu": {"model": "T4", "count": 1}, "node_selector": {"gpu": "yes"}}
DATA = data_file.document(Path(__file__).with_name("stacks.yaml").read_text("utf-8"))
STATUS: Object = DATA["status"]


@pytest.fixture(scope="module")
def stacks(server: Server) -> Iterator[str]:
    """The path of GPUStacks, with the applied definition."""
    path = f"{DEFINITIONS}/{CRD_NAME}"
    answer = server.apply(f"{path}", definition(), manager="gpu-provision")
    assert answer.code == 201, answer
    until(lambda: is_established(server, CRD_NAME))
    until(lambda: server.ask("GET", STACKS).code == 200)
    yield STACKS
    server.delete(path)
    until(lambda: server.is_gone(path))


@pytest.fixture
def prod(server: Server, stacks: str) -> Iterator[str]:
    path = f"{stacks}/prod"
    yield path
    server.delete(path)
    until(lambda: server.is_gone(path))


def stack(**spec: Any) -> Object:
    return {**stack_of({"name": "prod"}), "spec": {"pools": {"gpu": POOL}, **spec}}


@pytest.mark.usefixtures("stacks")
def test_the_definition_of_stacks_is_accepted_and_structural(server: Server) -> None:
    live = server.get(f"{DEFINITIONS}/{CRD_NAME}")
    conditions = {one["type"]: one["status"] for one in live["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


@pytest.mark.usefixtures("stacks")
def test_the_stack_definition_is_applied_again_unchanged(server: Server) -> None:
    before = server.get(f"{DEFINITIONS}/{CRD_NAME}")["metadata"]
    again = server.apply(f"{DEFINITIONS}/{CRD_NAME}", definition(), manager="gpu-provision").body["metadata"]
    assert again["resourceVersion"] == before["resourceVersion"]


def test_stacks_are_found_by_their_short_name(server: Server, stacks: str) -> None:
    rows = {row["name"]: row for row in server.get(stacks.rpartition("/")[0])["resources"]}
    assert (rows["gpustacks"]["shortNames"], rows["gpustacks"]["singularName"]) == (["gpus"], "gpustack")
    assert rows["gpustacks"]["namespaced"] is False
    assert "gpustacks/status" in rows


@pytest.mark.parametrize("file", sorted(GOOD.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_stack_of_every_inventory_keeps_its_meaning(server: Server, stacks: str, file: Path) -> None:
    sent = stack_of(parse(read_source(file))[0].data)
    path = f"{stacks}/{sent['metadata']['name']}"
    answer = server.ask("PATCH", f"{path}?fieldManager=me&fieldValidation=Strict", sent, "application/apply-patch+yaml")
    assert answer.code == 201, answer
    server.delete(path)
    stored, expected = inventory_of(answer.body), inventory_of(sent)
    assert stored[0] is not None
    assert expected[0] is not None
    assert (stored[0].specs, stored[0].pools, stored[0].nodes) == (
        expected[0].specs,
        expected[0].pools,
        expected[0].nodes,
    )
    assert stored[1] == expected[1] == ()


@pytest.mark.usefixtures("prod")
def test_defaults_of_a_stack_are_written_and_not_in_its_pools(server: Server, stacks: str) -> None:
    pool = {**POOL, "driver": {"version": "580.126.20"}}
    made = server.make(stacks, stack(driver={}, pools={"gpu": pool}))["spec"]
    assert made["release"] == "26.7.0"
    assert (made["driver"]["timeout"], made["driver"]["enabled"]) == (1200, True)
    assert made["pools"] == {"gpu": pool}


@pytest.mark.parametrize("wrong", DATA["wrong"], ids=lambda wrong: wrong["name"])
def test_a_stack_that_breaks_the_schema_is_refused_by_field(server: Server, stacks: str, wrong: Object) -> None:
    answer = server.ask("POST", stacks, stack(**wrong["spec"]))
    assert (answer.code, answer.reason) == (422, "Invalid"), answer
    assert wrong["field"] in answer.message


def texts(part: Object, value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of texts that must be one line of a form."""
    if isinstance(value, dict):
        for key, inner in value.items():
            known = part.get("properties", {}).get(key) or part.get("additionalProperties") or {}
            yield from texts(known, inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from texts(part.get("items", {}), inner, (*path, position))
    elif isinstance(value, str) and not re.fullmatch(part.get("pattern", ".*"), f"{value}\n", re.DOTALL):
        yield path


def test_a_text_of_a_stack_that_ends_in_a_newline_is_refused(server: Server, stacks: str) -> None:
    """In RE2 a dollar sign is the end of the text, in Python also before a final newline."""
    sent = stack_of(parse(read_source(GOOD / "complete.yaml"))[0].data)
    places = list(texts(spec_schema(), sent["spec"]))
    for *parent, last in places:
        wrong = copy.deepcopy(sent)
        holder = wrong["spec"]
        for step in parent:
            holder = holder[step]
        holder[last] += "\n"
        answer = server.ask("POST", stacks, wrong)
        assert (answer.code, answer.reason) == (422, "Invalid"), (parent, last, answer)
    assert len(places) > 60


@pytest.mark.usefixtures("prod")
def test_free_texts_of_a_stack_are_stored_as_they_are(server: Server, stacks: str) -> None:
    """Special characters have no meaning for server and loader."""
    free = "$(id); rm -rf / ../.. --a\u2028\u2029\x85\t\n" + "1" * 10_000
    given = {"gfd": {"env": {"NOTE": free}, "args": [free]}, "daemonsets": {"annotations": {"example.com/note": free}}}
    stored = server.make(stacks, stack(**given))
    assert {key: stored["spec"][key]["env" if key == "gfd" else "annotations"] for key in given} == {
        "gfd": {"NOTE": free},
        "daemonsets": {"example.com/note": free},
    }
    inventory, findings = inventory_of(stored)
    assert inventory is not None
    assert findings == ()
    (daemon_set,) = [each for each in render(inventory)["gfd"] if each["kind"] == "DaemonSet"]
    path = "/apis/apps/v1/namespaces/default/daemonsets?dryRun=All"
    daemon_set["metadata"]["namespace"] = "default"
    made = server.make(path, daemon_set)
    (main,) = made["spec"]["template"]["spec"]["containers"]
    assert {"name": "NOTE", "value": free} in main["env"]
    assert free in main["args"]
    assert made["spec"]["template"]["metadata"]["annotations"]["example.com/note"] == free


@pytest.mark.parametrize("name", ["a.b", "a" * 64, "a\n"])
def test_a_stack_is_named_as_an_inventory(server: Server, stacks: str, name: str) -> None:
    answer = server.ask("POST", stacks, {**stack(), "metadata": {"name": name}})
    assert (answer.code, answer.reason) == (422, "Invalid"), answer
    assert "metadata.name" in answer.message


@pytest.mark.usefixtures("prod")
def test_an_unknown_key_of_a_stack_is_dropped_or_refused(server: Server, stacks: str) -> None:
    body = stack(ssh={"user": "root"}, driver={"verison": "580.126.20"})
    if server.at_least(1, 25):
        answer = server.ask("POST", f"{stacks}?fieldValidation=Strict", body)
        assert (answer.code, answer.reason) == (400, "BadRequest")
        assert 'unknown field "spec.driver.verison"' in answer.message
    made = server.make(stacks, body)["spec"]
    assert "ssh" not in made
    assert "verison" not in made["driver"]


@pytest.mark.usefixtures("prod")
@pytest.mark.parametrize("enabled", [True, False, "auto"])
def test_a_stacks_driver_is_on_off_or_as_the_host_has_it(server: Server, stacks: str, enabled: object) -> None:
    assert server.make(stacks, stack(driver={"enabled": enabled}))["spec"]["driver"]["enabled"] == enabled


def test_a_stacks_status_is_apart_from_its_spec(server: Server, stacks: str, prod: str) -> None:
    made = server.make(stacks, {**stack(), "status": {"release": "1.0.0"}})
    assert "status" not in made
    found = server.patch(f"{prod}/status", {"spec": {"release": "25.10.1"}, "status": STATUS})
    assert (found["status"], found["spec"]) == (STATUS, made["spec"])
    assert found["metadata"]["generation"] == made["metadata"]["generation"] == 1
    changed = server.patch(prod, {"spec": {"release": "25.10.1"}, "status": {"release": "1.0.0"}})
    assert (changed["metadata"]["generation"], changed["status"]) == (2, STATUS)


def test_a_stacks_status_names_fifty_nodes_at_most(server: Server, stacks: str, prod: str) -> None:
    server.make(stacks, stack())
    problems = [{"name": f"gpu-{number}"} for number in range(51)]
    answer = server.ask("PATCH", f"{prod}/status", {"status": {"nodes": {"problems": problems}}}, MERGE)
    assert (answer.code, answer.reason) == (422, "Invalid")


def test_a_stack_is_printed_with_what_matters(server: Server, stacks: str, prod: str) -> None:
    server.make(stacks, stack())
    server.patch(f"{prod}/status", {"status": STATUS})
    table = server.ask("GET", stacks, accept=TABLE).body
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names == ["Name", "Release", "Ready", "Nodes", "GPUs", "Rollout", "Age"]
    (row,) = table["rows"]
    assert row["cells"][:-1] == ["prod", "26.7.0", "False", "3/4", 24, "1/4"]


def test_a_stack_is_held_by_its_finalizer(server: Server, stacks: str, prod: str) -> None:
    made = server.make(stacks, {**stack(), "metadata": {"name": "prod", "finalizers": [FINALIZER]}})
    assert made["metadata"]["finalizers"] == [FINALIZER]
    server.delete(prod)
    assert server.get(prod)["metadata"]["deletionTimestamp"]
    server.patch(prod, {"metadata": {"finalizers": None}})
    until(lambda: server.is_gone(prod))


def test_two_managers_have_nodes_of_their_own_in_a_stack(server: Server, prod: str) -> None:
    """Servers before 1.21 treat the list as atomic."""
    first = stack(nodes=[{"name": "gpu-1", "pool": "gpu"}])
    assert server.apply(prod, first, manager="first").code == 201
    second = {**stack(), "spec": {"nodes": [{"name": "gpu-2", "pool": "gpu"}]}}
    answer = server.apply(prod, second, manager="second")
    if not server.at_least(1, 21):
        assert [cause["field"] for cause in answer.causes] == [".spec.nodes"]
        return
    assert [node["name"] for node in answer.body["spec"]["nodes"]] == ["gpu-1", "gpu-2"]
