"""The CEL rules of the definition, on a server that evaluates them; the sandbox does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision.inventory.document import read_source
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.kube.client import connect
from gpu_provision.operator.crd import CRD_NAME, RULES_KEY, definition
from gpu_provision.operator.install import strip_refused_rules
from gpu_provision.operator.stack import STACK, stack_of
from tests.contract.api.definitions import DEFINITIONS, is_established
from tests.contract.client import Answer, Object, Server, until
from tests.operator.conftest import INVENTORIES
from tests.operator.rule_cases import CASES, SECRET, Case, stack

pytestmark = [
    pytest.mark.since(1, 29),
    pytest.mark.real,
    pytest.mark.parametrize("server", ["real"], indirect=True, scope="session"),
]
PROD = f"/apis/{STACK.api_version}/gpustacks/prod"


@pytest.fixture(scope="module")
def definition_answer(server: Server) -> Iterator[Answer]:
    """The response to the definition with rules, once it is established."""
    if not server.at_least(1, 29):
        pytest.skip("it evaluates no rules; with KUBEBUILDER_ASSETS of 1.29 or newer these run: docs/testing.md")
    path = f"{DEFINITIONS}/{CRD_NAME}"
    answer = server.apply(path, definition(rules=True), manager="gpu-provision")
    assert answer.code == 201, answer
    until(lambda: is_established(server, CRD_NAME))
    until(lambda: server.ask("GET", PROD.rpartition("/")[0]).code == 200)
    yield answer
    server.delete(path)
    until(lambda: server.is_gone(path))


@pytest.fixture
def prod(server: Server, definition_answer: Answer) -> Iterator[str]:  # noqa: ARG001 - is in force
    yield PROD
    server.delete(PROD)
    until(lambda: server.is_gone(PROD))


def apply_object(server: Server, path: str, item: Object) -> Answer:
    return server.ask("PATCH", f"{path}?fieldManager=me&fieldValidation=Strict", item, "application/apply-patch+yaml")


def test_a_definition_with_rules_is_accepted_without_a_warning(server: Server, definition_answer: Answer) -> None:
    """Syntax, types and estimated cost are valid, and no rule is dropped."""
    assert "Warning" not in definition_answer.headers
    live = server.get(f"{DEFINITIONS}/{CRD_NAME}")
    assert str(live).count(f"'{RULES_KEY}'") == str(definition(rules=True)).count(f"'{RULES_KEY}'")
    again = server.apply(f"{DEFINITIONS}/{CRD_NAME}", definition(rules=True), manager="gpu-provision").body
    assert again["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_rule_refuses_with_the_place_and_the_finding(server: Server, prod: str, case: Case) -> None:
    """As in tests/operator/test_cel.py."""
    if case.before is not None:
        assert apply_object(server, prod, stack(case.before)).code == 201
    answer = apply_object(server, prod, stack(case.spec))
    if not case.message:
        assert answer.code in (200, 201), answer
        return
    assert (answer.code, answer.reason) == (422, "Invalid"), answer
    assert [(cause["field"], case.message in cause["message"]) for cause in answer.causes] == [(case.where, True)]


def test_a_refusal_tells_no_secret(server: Server, prod: str) -> None:
    answer = apply_object(server, prod, stack(CASES["a secret in http_proxy"].spec))
    assert answer.code == 422
    assert SECRET not in str(answer)


@pytest.mark.parametrize("file", INVENTORIES, ids=lambda file: file.stem)
def test_no_rule_refuses_the_stack_of_an_inventory(server: Server, prod: str, file: Path) -> None:
    """Neither a new one, nor an update."""
    sent = {**stack_of(parse(read_source(file))[0].data), "metadata": {"name": "prod"}}
    assert apply_object(server, prod, sent).code == 201
    labelled = {**sent, "spec": {**sent["spec"], "history": {"keep": 7}}}
    assert apply_object(server, prod, labelled).code == 200


@pytest.mark.usefixtures("definition_answer")
def test_rules_that_are_too_costly_are_left_out(server: Server) -> None:
    """The server does not bound the length of a text from ``filter``."""
    wanted = definition(rules=True)
    rules = wanted["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][RULES_KEY]
    rules[0]["messageExpression"] = "'no pool ' + self.nodes.filter(node, node.pool != '')[0].pool"
    before = server.get(f"{DEFINITIONS}/{CRD_NAME}")
    kept, (finding,) = strip_refused_rules(connect(str(server.kubeconfig)), wanted, "gpu-provision")
    assert kept == definition()
    assert finding.code == "GP397"
    assert "cost exceeds budget" in finding.evidence
    assert server.get(f"{DEFINITIONS}/{CRD_NAME}") == before
