"""Install the operator into a cluster that another tool has written to."""

from __future__ import annotations

import copy
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.observe import CRD
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, InvalidError, RunFailedError, Severity
from gpu_provision.operator.client import add_finalizer, remove_finalizer
from gpu_provision.operator.crd import CRD_NAME, LABELS, RULES_KEY, definition
from gpu_provision.operator.install import install, skew_findings
from gpu_provision.operator.manifests import InstallOptions
from gpu_provision.operator.stack import DEFAULT_LEASE, LEASE_ANNOTATION, NAMESPACE_ANNOTATION, stack_of
from gpu_provision.sandbox.apiserver.errors import Cause
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.validation import object_causes
from tests.components import builders

CONTROLLER = ObjectRef("apps/v1", "Deployment", "gpu-operator", "gpu-provision-operator")
ROLE = ObjectRef("rbac.authorization.k8s.io/v1", "ClusterRole", "", "gpu-provision-operator")
ACCOUNT = ObjectRef("v1", "ServiceAccount", "gpu-operator", "gpu-provision-operator")


def test_a_conflict_is_reported_before_any_write(cluster: KubeClient) -> None:
    """tests/scenarios/test_operator_installation.py has its resolution, and shared fields."""
    install(cluster, InstallOptions(), [], seconds=30)
    role = cluster.read(ROLE)
    theirs = {"apiVersion": ROLE.api_version, "kind": ROLE.kind, "metadata": {"name": ROLE.name}}
    cluster.apply({**theirs, "rules": role["rules"][1:]}, manager="kubectl-client-side-apply", take_back=True)
    cluster.delete(ACCOUNT)
    with pytest.raises(RunFailedError) as refused:
        install(cluster, InstallOptions(), [], seconds=30)
    (finding,) = refused.value.findings
    assert (finding.code, finding.where) == ("GP396", str(ROLE))
    assert ".rules" in finding.evidence
    assert cluster.get(ACCOUNT) is None


def test_a_monitor_waits_for_its_kind(cluster: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_provision.operator.install._is_available", lambda _: True)  # nothing runs pods here
    settings = {"operator": {"metrics": {"service_monitor": {"enabled": True}}}}
    shape = InstallOptions(image="registry.example.com/gpu-provision:0.1.0", replicas=1)
    written, (finding,) = install(cluster, shape, [builders.inventory_with(settings)], seconds=30)
    assert (finding.code, finding.severity) == ("GP414", Severity.WARNING)
    assert {ref.kind for ref in written} >= {"Service", "Deployment"}
    assert "ServiceMonitor" not in {ref.kind for ref in written}


def test_a_controller_that_does_not_get_ready_says_why(cluster: KubeClient) -> None:
    """What its pod waits for, or why it has none."""

    def evidence() -> str:
        with pytest.raises(RunFailedError) as late:
            install(cluster, InstallOptions(image="registry.example.com/gpu-provision:0.1.0"), [], seconds=0)
        (finding,) = late.value.findings
        assert (finding.code, finding.where) == ("GP391", str(CONTROLLER))
        return finding.evidence

    install(cluster, InstallOptions(), [], seconds=30)
    assert evidence() == ""
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "unauthorized"}}
    status = {"containerStatuses": [{"name": "controller", "ready": False, "state": waiting}]}
    pod = ObjectRef("v1", "Pod", CONTROLLER.namespace, "controller-1")
    metadata = {"name": pod.name, "namespace": pod.namespace, "labels": LABELS}
    containers = [{"name": "controller", "image": "registry.example.com/gpu-provision:0.1.0"}]
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}})
    cluster.merge_patch(pod, {"status": status}, part="status")
    assert evidence() == "controller-1: controller: ImagePullBackOff: unauthorized"
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: pods"}
    cluster.merge_patch(CONTROLLER, {"status": {"conditions": [refused]}}, part="status")
    assert evidence() == "FailedCreate: exceeded quota: pods"


TOO_DEAR = Cause(
    "FieldValueForbidden",
    "Forbidden: estimated messageExpression cost exceeds budget by factor of more than 100x (try simplifying the rule)",
    "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].messageExpression",
)


def test_rules_that_the_server_refuses_are_left_out(cluster: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade of the cluster: a warning has the server's message, and a second run writes nothing."""

    def causes(item: Manifest, info: ResourceInfo) -> list[Cause]:
        return [*object_causes(item, info), *([TOO_DEAR] if RULES_KEY in str(item) else [])]

    ref = ObjectRef(*CRD, "", CRD_NAME)
    install(cluster, InstallOptions(), [], seconds=30)
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
        install(cluster, InstallOptions(), [], seconds=30)


def test_a_stack_is_held_once_with_where_it_is_installed(cluster: KubeClient) -> None:
    """A later namespace does not change the annotation; a later lease does."""
    install(cluster, InstallOptions(), [], seconds=30)
    stack = ref_of(cluster.create(stack_of({"name": "main"})))
    add_finalizer(cluster, stack, "gpus")
    first = cluster.read(stack)["metadata"]
    assert first["annotations"][NAMESPACE_ANNOTATION] == "gpus"
    add_finalizer(cluster, stack, "elsewhere")
    assert cluster.read(stack)["metadata"] == first
    cluster.merge_patch(stack, {"metadata": {"annotations": {NAMESPACE_ANNOTATION: None}}})
    add_finalizer(cluster, stack, "gpus")
    assert cluster.read(stack)["metadata"]["annotations"][NAMESPACE_ANNOTATION] == "gpus"
    add_finalizer(cluster, stack, "gpus", "elsewhere/leader")
    both = {NAMESPACE_ANNOTATION: "gpus", LEASE_ANNOTATION: "elsewhere/leader"}
    assert cluster.read(stack)["metadata"]["annotations"] == both
    add_finalizer(cluster, stack, "gpus")
    assert cluster.read(stack)["metadata"]["annotations"] == {NAMESPACE_ANNOTATION: "gpus"}
    cluster.delete(stack)
    assert cluster.get(stack)
    remove_finalizer(cluster, stack)
    assert cluster.get(stack) is None


OURS = version("gpu-provision")


def shorter() -> Any:
    live = copy.deepcopy(definition())
    del live["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["rollout"]
    return live


@pytest.mark.parametrize(
    ("live", "controller", "words"),
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
def test_parts_of_another_version_are_named(live: Any, controller: str, words: list[str]) -> None:
    def get(_: ObjectRef) -> Any:
        if isinstance(live, Exception):
            raise live
        return live

    found = skew_findings(cast("KubeClient", SimpleNamespace(get=get)), controller, f"Lease {DEFAULT_LEASE}")
    assert [(each.code, each.severity.value) for each in found] == [("GP436", "warning")] * len(words)
    assert all("operator install" in each.fix for each in found)
    assert all(word in f"{each.what} {each.evidence}" for word, each in zip(words, found, strict=True))


def test_key_that_a_stack_would_lose_stops_the_installation(cluster: KubeClient) -> None:
    """The API server would drop it silently. tests/scenarios/test_operator_installation.py has a whole upgrade."""
    older = definition()
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["legacy"] = {"type": "string"}
    cluster.apply(older, manager="gpu-provision-operator")
    cluster.create({**stack_of({"name": "old"}), "spec": {"legacy": "x"}})
    with pytest.raises(RunFailedError, match=r"GP395 gpustack/old spec\.legacy"):
        install(cluster, InstallOptions(), [], seconds=30)
