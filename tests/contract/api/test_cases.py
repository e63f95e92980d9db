"""Requests and expected responses: cases/*.yaml; the first lines of objects.yaml explain the keys."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import data_file
from tests.contract.api.definitions import DEFINITIONS, GROUP, definition, establish
from tests.contract.client import APPLY, JSON, JSON_PATCH, MERGE, STRATEGIC, YAML, Answer, Object, Server, until

FOLDER = Path(__file__).parent / "cases"
TYPES = {"APPLY": APPLY, "MERGE": MERGE, "STRATEGIC": STRATEGIC, "JSONPATCH": JSON_PATCH}
CUSTOM = f"/apis/{GROUP}/v1/namespaces/$namespace"
ROOTS = {"$custom": CUSTOM, "core": "/api/v1/namespaces/$namespace", "apps": "/apis/apps/v1/namespaces/$namespace"}
FORMS = {form: f"application/json;as={form};g=meta.k8s.io;v=v1" for form in ("Table", "PartialObjectMetadataList")}


def cases() -> Iterator[Any]:
    """Yield every case with its values; the id has file, name and, for several values, a number."""
    for file in sorted(FOLDER.glob("*.yaml")):
        for case in data_file.document(file.read_text("utf-8"))["cases"]:
            rows = case.get("each", [{}])
            for number, values in enumerate(rows):
                name = f"{file.stem}/{case['name']}" + (f" #{number}" if len(rows) > 1 else "")
                yield pytest.param(case, values, id=name)


def fill_in(value: Any, known: Object) -> Any:
    """Replace every ``$name`` in a value by the known value of this name."""
    if isinstance(value, dict):
        return {fill_in(key, known): fill_in(part, known) for key, part in value.items()}
    if isinstance(value, list):
        return [fill_in(part, known) for part in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    if value[1:] in known:
        return known[value[1:]]
    return re.sub(r"\$(\w+)", lambda found: str(known.get(found[1], found[0])), value)


def find(value: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        value = value[int(part)] if isinstance(value, list) else (value or {}).get(part)
    return value


def differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    """Yield the differences of a response from the expected values; it may have more fields."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, part in wanted.items():
            yield from differences(found.get(key), part, f"{where}.{key}")
    elif isinstance(wanted, dict) and isinstance(found, list):
        missing = [part for part in wanted.get("has", ()) if all([*differences(item, part)] for item in found)]
        yield from (f"{where} has no {part} in {found}" for part in missing)
        yield from differences(found[: len(first)], first, where) if (first := wanted.get("first")) else ()
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, part in enumerate(wanted):
            yield from differences(found[number], part, f"{where}[{number}]")
    elif isinstance(wanted, str) and wanted.startswith("~"):
        if not re.search(wanted[1:], str(found)):
            yield f"{where} is {found!r}, which {wanted} does not match"
    elif found != wanted:
        yield f"{where} is {found!r} and not {wanted!r}"


class Run:
    """One case on one server; `close` deletes its objects."""

    def __init__(self, server: Server, values: Object) -> None:
        bare = replace(server.access, token="", certificate=b"", key=b"")
        wrong = replace(bare, token="wrong")  # noqa: S106 - no secret
        self._clients = {"": server, "anonymous": server.with_access(bare), "wrong": server.with_access(wrong)}
        self._clients |= {"user": server.as_user("gpu-provision")} if server.user else {}
        self._known, self._made = values, list[str]()

    def step(self, step: Object) -> None:
        server, step = self._clients[""], fill_in(step, self._known)
        since, before = (tuple(map(int, step.get(key, "0.0").split("."))) for key in ("since", "before"))
        if not server.at_least(*since) or ("before" in step and server.at_least(*before)):
            return
        codes = step.get("code", [200, 201, 202])
        codes = codes if isinstance(codes, list) else [codes]
        if "sees" in step:
            answer = self._watch(step)
        else:
            answer = until(lambda: self._answer(step, codes)) if "wait" in step else self._ask(step)
        assert answer.code in codes, answer
        self._compare(step, answer)
        self._known |= {name: find(answer.body, path) for name, path in step.get("keep", {}).items()}

    def _answer(self, step: Object, codes: list[int]) -> Answer | None:
        answer = self._ask(step)
        return answer if answer.code in codes else None

    def _watch(self, step: Object) -> Answer:
        _, path = self._request(step)
        with self._clients[""].watch(path, accept=FORMS.get(str(step.get("accept")), JSON)) as events:
            return Answer(200, [events.next()._asdict() for _ in step["sees"]], events.headers)

    def _request(self, step: Object) -> tuple[str, str]:
        verb, text = step["do"].split(" ", 1)
        root, slash, rest = text.partition("/")
        return verb, fill_in(ROOTS.get(root, root), self._known) + slash + rest

    def _ask(self, step: Object) -> Answer:
        verb, path = self._request(step)
        kind = step.get("type", YAML if isinstance(step.get("body"), str) and "\n" in step["body"] else JSON)
        kind, verb = (TYPES[verb], "PATCH") if verb in TYPES else (kind, verb)
        accept, headers = str(step.get("accept", JSON)), step.get("headers")
        client = self._clients[step.get("as", "")]
        answer = client.ask(verb, path, step.get("body"), kind, accept=FORMS.get(accept, accept), headers=headers)
        if verb in ("POST", "PATCH", "PUT") and answer.code == 201 and isinstance(answer.body, dict):
            name = answer.body.get("metadata", {}).get("name", "")
            self._made.append(f"{path.partition('?')[0]}/{name}" if verb == "POST" else path.partition("?")[0])
        return answer

    @staticmethod
    def _compare(step: Object, answer: Answer) -> None:
        assert answer.reason == step.get("reason", answer.reason), answer
        says = step.get("says", [])
        for text in says if isinstance(says, list) else [says]:
            assert any(one in answer.message for one in text.split(" || ")), answer
        wanted = step.get("gives", step.get("sees"))
        is_text = isinstance(answer.body, str) and isinstance(wanted, dict)  # as which newer servers send OpenAPI
        body = json.loads(answer.body) if is_text else answer.body
        assert wanted is None or [*differences(body, wanted)] == [], answer
        for path in step.get("lacks", ()):
            assert find(answer.body, path) is None, path
        for path, value in step.get("differs", {}).items():
            assert find(answer.body, path) != value, path
        assert [*differences(dict(answer.headers), step.get("headed", {}))] == []

    def close(self) -> None:
        for path in reversed(self._made):
            self._clients[""].ask("DELETE", f"{path}?gracePeriodSeconds=0")
        for name in {*self._clients} - {""}:
            self._clients[name].close()


@pytest.fixture(scope="module")
def _widgets(server: Server) -> Iterator[None]:
    establish(server, definition("widgets"))
    yield
    server.delete(f"{DEFINITIONS}/widgets.{GROUP}")
    until(lambda: server.is_gone(f"{DEFINITIONS}/widgets.{GROUP}"))


@pytest.mark.usefixtures("_widgets")
@pytest.mark.parametrize(("case", "values"), [*cases()])
def test_a_server_answers_as_the_case_says(server: Server, namespace: str, case: Object, values: Object) -> None:
    """docs/contract.md has a line for each case."""
    if not server.at_least(*map(int, case.get("since", "1.0").split("."))):
        pytest.skip(f"Kubernetes {server.release} has not got it; {case['since']} has")
    if case.get("controllers") and not server.controllers:
        pytest.skip("the programs at hand lack the controllers")
    if not server.user and any(step.get("as") == "user" for step in case["steps"]):
        pytest.skip("this cluster has no user to spare")
    known = {"namespace": namespace, "policy": "v1" if server.at_least(1, 22) else "v1beta1"}
    with contextlib.closing(Run(server, known | fill_in(values, known))) as run:
        for step in case["steps"]:
            run.step(step)
