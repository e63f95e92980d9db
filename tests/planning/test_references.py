"""What pods refer to by name, and what is said if it is not there."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Severity
from gpu_provision.model.specs import SecretKey
from gpu_provision.planning.prepare import missing_findings, prepare, references, unread_finding
from tests.components.builders import fleet, inventory, with_spec

NAMESPACE = "operands"


def daemonset(**spec: Any) -> Manifest:
    metadata = {"name": "plugin", "namespace": NAMESPACE}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"template": {"spec": spec}}}


def named(*manifests: Manifest) -> set[tuple[str, str, bool]]:
    return {(each.ref.kind, each.ref.name, each.is_required) for each in references({"device_plugin": manifests})}


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [fields]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"volumes": [{"name": "v", "configMap": {"name": "a"}}]}, ("ConfigMap", "a", True)),
        ({"volumes": [{"name": "v", "configMap": {"name": "a", "optional": True}}]}, None),
        ({"volumes": [{"name": "v", "secret": {"secretName": "a"}}]}, ("Secret", "a", True)),
        ({"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "a"}}]}}]}, ("Secret", "a", True)),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, None),
        ({"imagePullSecrets": [{"name": "a"}]}, ("Secret", "a", False)),
        (container(envFrom=[{"configMapRef": {"name": "a"}}]), ("ConfigMap", "a", True)),
        (
            container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "k"}}}]),
            ("Secret", "a", True),
        ),
        (container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]), None),
        ({"initContainers": [{"envFrom": [{"secretRef": {"name": "a", "optional": True}}]}]}, None),
    ],
)
def test_what_pods_refer_to_is_found(spec: dict[str, Any], expected: tuple[str, str, bool] | None) -> None:
    assert named(daemonset(**spec)) == ({expected} if expected else set())


def test_what_the_stack_makes_itself_is_no_reference() -> None:
    metadata = {"name": "a", "namespace": NAMESPACE}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    assert named(daemonset(volumes=[{"configMap": {"name": "a"}}]), made) == set()
    assert references(prepare(inventory(), fleet())[1]) == ()


def test_every_setting_that_names_an_object_is_found() -> None:
    """Whatever the components do with it."""
    driver = {
        "repo_config": "repos",
        "cert_config": "certificates",
        "kernel_module_config": "modules",
        "licensing_config": "licence",
        "image_pull_secrets": ("mirror",),
        "env": {"TOKEN": SecretKey(name="git", key="pat")},
    }
    found = {each.ref.name for each in references(prepare(with_spec("driver", **driver), fleet())[1])}
    assert found == {"repos", "certificates", "modules", "licence", "mirror", "git"}


CONFIG = ObjectRef("v1", "ConfigMap", NAMESPACE, "sharing")
PULL = ObjectRef("v1", "Secret", NAMESPACE, "mirror")
BOTH = daemonset(volumes=[{"configMap": {"name": "sharing"}}], imagePullSecrets=[{"name": "mirror"}])


def test_a_missing_object_is_one_error_before_pods_need_it() -> None:
    """Also if several components refer to it. Images may be pulled without a pull secret."""
    other = {**BOTH, "metadata": {**BOTH["metadata"], "name": "gfd"}}
    uses = references({"device_plugin": [BOTH], "gfd": [other]})
    error, warning = missing_findings(uses, {CONFIG, PULL}, {ref_of(other)}, {NAMESPACE})
    assert (error.severity, error.where) == (Severity.ERROR, "ConfigMap operands/sharing")
    assert "device_plugin, gfd" in error.what
    assert f"kubectl -n {NAMESPACE} create configmap sharing " in error.fix
    assert (warning.severity, warning.where) == (Severity.WARNING, "Secret operands/mirror")
    assert "docker-registry" in warning.fix


def test_pods_that_run_are_worth_a_warning() -> None:
    (found,) = missing_findings(references({"device_plugin": [BOTH]}), {CONFIG}, (), ())
    assert found.severity is Severity.WARNING
    assert "kubectl create namespace operands; " in found.fix


def test_what_may_not_be_read_is_one_warning() -> None:
    (found,) = unread_finding({CONFIG, PULL})
    assert (found.severity, found.where) == (Severity.WARNING, "ConfigMap operands/sharing, Secret operands/mirror")
    assert not [*unread_finding(())]
