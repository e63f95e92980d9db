"""The operator comes into a cluster in which another tool has been before."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, InvalidError, RunFailedError, Severity
from gpu_provision.operator import install as installing
from gpu_provision.operator.client import add_finalizer, remove_finalizer
from gpu_provision.operator.crd import CRD_NAME, DEFINITION, RULES_KEY, definition
from gpu_provision.operator.install import MANAGER, install, skew_findings, uninstall
from gpu_provision.operator.manifests import InstallOptions, manifests
from gpu_provision.operator.stack import DEFAULT_LEASE, HOME, LED_BY, STACK, stack_of
from gpu_provision.sandbox.apiserver.errors import Cause
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.validation import object_causes
from tests.sandbox.apiserver.conftest import Running

KUBECTL = "kubectl-client-side-apply"
ROLE = ObjectRef("rbac.authorization.k8s.io/v1", "ClusterRole", "", "gpu-provision-operator")
POLICY = ObjectRef("networking.k8s.io/v1", "NetworkPolicy", "gpu-operator", "gpu-provision-operator")


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[KubeClient]:
    """An empty API server."""
    running = Running(tmp_path)
    yield connect(str(running.server.kubeconfig))
    running.stop()


def installed(cluster: KubeClient, **terms: Any) -> tuple[str, ...]:
    """Install what has no controller; return the kinds and names of what was written."""
    return tuple(map(str, install(cluster, InstallOptions(), [], seconds=30, **terms)[0]))


def versions(cluster: KubeClient) -> dict[ObjectRef, str]:
    """Return the version of everything that makes up the operator and is there."""
    refs = map(ref_of, manifests(InstallOptions()))
    found = {ref: cluster.get(ref) for ref in refs}
    return {ref: live["metadata"]["resourceVersion"] for ref, live in found.items() if live}


def other_rights() -> dict[str, Any]:
    """Return the role as another tool applies it: with less in it."""
    role = copy.deepcopy(next(item for item in manifests(InstallOptions()) if ref_of(item) == ROLE))
    role["rules"] = role["rules"][1:]
    return role


def test_equal_objects_of_another_tool_are_shared(cluster: KubeClient) -> None:
    """Nothing is undone, and a second installation finds nothing to do."""
    for item in manifests(InstallOptions()):
        cluster.apply(item, manager=KUBECTL)
    installed(cluster)
    assert installed(cluster) == ()


def test_a_conflict_is_reported_before_any_write(cluster: KubeClient) -> None:
    """With who it was, and both ways out; fields are taken over if that is asked for."""
    installed(cluster)
    cluster.apply(other_rights(), manager=KUBECTL, take_back=True)
    before = versions(cluster)
    with pytest.raises(RunFailedError) as refused:
        installed(cluster)
    (finding,) = refused.value.findings
    assert (finding.code, finding.where) == ("GP396", str(ROLE))
    assert KUBECTL in finding.what
    assert ".rules" in finding.evidence
    assert "--take-over" in finding.fix
    assert versions(cluster) == before
    assert installed(cluster, take_over=True) == (str(ROLE),)
    assert installed(cluster) == ()


def older(cluster: KubeClient) -> None:
    """Install the definition of a version that knows one more key, and a stack that has it."""
    made = definition()
    spec = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["legacy"] = {"type": "string"}
    cluster.apply(made, manager=MANAGER)
    cluster.create({**stack_of({"name": "old"}), "spec": {"legacy": "x", "release": "26.7.0"}})


def test_key_that_a_stack_would_lose_stops_the_installation(cluster: KubeClient) -> None:
    """The API server would drop it in silence."""
    older(cluster)
    with pytest.raises(RunFailedError) as refused:
        installed(cluster)
    (finding,) = refused.value.findings
    assert (finding.code, finding.where) == ("GP395", "gpustack/old spec.legacy")
    assert "kubectl edit gpustack old" in finding.fix
    stack = ObjectRef(*STACK, "", "old")
    assert cluster.read(stack)["spec"]["legacy"] == "x"
    cluster.merge(stack, {"spec": {"legacy": None}})
    assert f"{DEFINITION.kind} {CRD_NAME}" in installed(cluster)


TOO_DEAR = Cause(
    "FieldValueForbidden",
    "Forbidden: estimated messageExpression cost exceeds budget by factor of more than 100x (try simplifying the rule)",
    "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].messageExpression",
)


def test_rules_that_the_server_refuses_are_left_out(cluster: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade of the cluster: with a warning in the server's words; a second time nothing is written."""

    def causes(item: Manifest, info: ResourceInfo) -> list[Cause]:
        return [*object_causes(item, info), *([TOO_DEAR] if RULES_KEY in str(item) else [])]

    ref = ObjectRef(*DEFINITION, "", CRD_NAME)
    installed(cluster)
    assert RULES_KEY in str(cluster.read(ref))
    monkeypatch.setattr("gpu_provision.sandbox.apiserver.strategy.object_causes", causes)
    written, (finding,) = install(cluster, InstallOptions(), [], seconds=30)
    assert written == (ref,)
    assert (finding.code, finding.severity) == ("GP397", Severity.WARNING)
    assert TOO_DEAR.message in finding.evidence
    assert RULES_KEY not in str(cluster.read(ref))
    assert install(cluster, InstallOptions(), [], seconds=30) == ((), (finding,))


def test_what_else_is_refused_of_the_definition_stays_an_error(
    cluster: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Cause("FieldValueInvalid", "Invalid value: must be lower case", "spec.names.plural")
    monkeypatch.setattr("gpu_provision.sandbox.apiserver.strategy.object_causes", lambda *_: [wrong])
    with pytest.raises(InvalidError, match="must be lower case"):
        installed(cluster)


def test_an_older_installation_gets_a_network_policy(cluster: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes with the operator."""
    monkeypatch.setattr(installing, "_is_available", lambda _: True)  # a controller would need nodes
    shape = InstallOptions(image="registry.example.com/gpu-provision:0.1.0")
    install(cluster, shape, [], seconds=30)
    assert cluster.get(POLICY)
    cluster.delete(POLICY)
    assert install(cluster, shape, [], seconds=30)[0] == (POLICY,)
    assert POLICY in uninstall(cluster, with_stacks=False, seconds=30)[0]
    assert cluster.get(POLICY) is None


def test_a_stack_is_held_once_with_where_it_is_installed(cluster: KubeClient) -> None:
    """What it declares later does not change that; by which lease controllers agree may change."""
    installed(cluster)
    stack = ref_of(cluster.create(stack_of({"name": "main"})))
    add_finalizer(cluster, stack, "gpus")
    first = cluster.read(stack)["metadata"]
    assert first["annotations"][HOME] == "gpus"
    add_finalizer(cluster, stack, "elsewhere")
    assert cluster.read(stack)["metadata"] == first
    cluster.merge(stack, {"metadata": {"annotations": {HOME: None}}})
    add_finalizer(cluster, stack, "gpus")
    assert cluster.read(stack)["metadata"]["annotations"][HOME] == "gpus"
    add_finalizer(cluster, stack, "gpus", "elsewhere/leader")
    assert cluster.read(stack)["metadata"]["annotations"] == {HOME: "gpus", LED_BY: "elsewhere/leader"}
    add_finalizer(cluster, stack, "gpus")
    assert cluster.read(stack)["metadata"]["annotations"] == {HOME: "gpus"}
    cluster.delete(stack)
    assert cluster.get(stack)
    remove_finalizer(cluster, stack)
    assert cluster.get(stack) is None


OURS = version("gpu-provision")


def shorter() -> Any:
    """Return a definition without one of the keys."""
    live = copy.deepcopy(definition())
    del live["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["rollout"]
    return live


@pytest.mark.parametrize(
    ("live", "controller", "told"),
    [
        ({**definition(), "status": {}}, OURS, []),
        ({**definition(rules=True), "status": {}}, "", []),
        (None, OURS, []),
        (definition(), "0.0.9", ["0.0.9"]),
        (ForbiddenError(Finding(code="GP303", what="no")), "0.0.9", ["0.0.9"]),
        (shorter(), OURS, ["rollout"]),
    ],
    ids=["one version", "rules are the API server's affair", "no stacks", "controller", "no rights", "definition"],
)
def test_parts_of_another_version_are_named(live: Any, controller: str, told: list[str]) -> None:
    def get(_: ObjectRef) -> Any:
        if isinstance(live, Exception):
            raise live
        return live

    found = skew_findings(cast("KubeClient", SimpleNamespace(get=get)), controller, f"Lease {DEFAULT_LEASE}")
    assert [(each.code, each.severity.value) for each in found] == [("GP436", "warning")] * len(told)
    assert all("operator install" in each.fix for each in found)
    assert all(word in f"{each.what} {each.evidence}" for word, each in zip(told, found, strict=True))
