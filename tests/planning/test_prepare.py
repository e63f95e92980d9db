"""Manifests of an inventory and of a selection, and references of pods."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.kube import observe
from gpu_provision.model.cluster import Manifest, ObjectRef, RenderContext, ref_of
from gpu_provision.model.driver_specs import VirtualTopology
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import ALL, RunSelection
from gpu_provision.model.operand_specs import SecretKey
from gpu_provision.model.plan import Action
from gpu_provision.planning.applyset import applyset_id, kinds_of
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import (
    MAX_OBJECT_LENGTH,
    MAX_VALUES_LENGTH,
    find_references,
    inventory_findings,
    missing_findings,
    prepare,
    select_part,
    too_many_nodes_findings,
    unread_findings,
)
from tests.components.builders import fleet, inventory, with_spec
from tests.planning.builders import Stack


def test_the_id_of_a_set_follows_kep_3659() -> None:
    """applyset-<base64url(sha256(name.namespace.kind.group))>-v1."""
    assert applyset_id("prod", "gpu-operator-resources") == "applyset-1psuBU6u1GnIWKkPXmw4JXbGlGy_ak_JUaYUJjvBiCU-v1"


def test_the_parent_names_every_kind_that_is_applied() -> None:
    _, desired = prepare(inventory(), fleet())
    parent = desired["prerequisites"][-1]
    assert ref_of(parent).name == "sandbox"
    assert {"DaemonSet.apps", "Deployment.apps", "ConfigMap", "Namespace"} <= kinds_of(parent)
    assert kinds_of(parent).isdisjoint({"Node", "Pod"})
    others = parent["metadata"]["annotations"]["applyset.kubernetes.io/additional-namespaces"]
    assert others == "node-feature-discovery"


def test_warnings_about_the_file_are_findings_of_the_plan() -> None:
    """A plan shows a typo in a version, not ``validate`` alone."""
    warning = Finding(code="GP133", what="no release recommends driver 595.91.99", severity=Severity.WARNING)
    known, _ = prepare(inventory(warnings=(warning,)), fleet())
    assert warning in inventory_findings(known)


LIMITS = [(9, 9_000, 10_000), (45, 6_500, 7_500), (253, 2_000, 3_000)]
"""Length of names, a number of nodes that fits, and one that does not."""

_LONGEST = f"{'0' * 16}.{'0' * 36}.2026-11-21T07:30:00Z"  # verdict


def context_of(length: int, count: int) -> RenderContext:
    context = Stack(facts=fleet()).context
    target = context.targets[0]
    return replace(context, targets=tuple(replace(target, name=f"{each:0{length}}") for each in range(count)))


@pytest.mark.parametrize(("length", "fits", "is_too_many"), LIMITS, ids=["short", "of a cloud", "as long as may be"])
def test_a_record_that_would_not_fit_is_found_by_the_plan(length: int, fits: int, is_too_many: int) -> None:
    assert not [*too_many_nodes_findings(context_of(length, fits))]
    (found,) = too_many_nodes_findings(context_of(length, is_too_many))
    room = int(found.evidence.split()[-2])
    assert fits < room < is_too_many
    assert found.where == "ConfigMap gpu-operator-resources/sandbox-validations"


@pytest.mark.parametrize(("length", "fits"), [limit[:2] for limit in LIMITS], ids=["short", "of a cloud", "long"])
def test_the_reported_number_of_nodes_fits(length: int, fits: int) -> None:
    """As the API server counts: values alone, and the whole with its book of fields."""
    names = [target.name for target in context_of(length, fits).targets]
    record = observe.validations_manifest(inventory(), {("device_plugin_validation", name): _LONGEST for name in names})
    assert sum(map(len, record["data"].values())) < MAX_VALUES_LENGTH
    book = {f"f:{name}": {} for name in names}
    data = sum(len(key) + len(value) for key, value in record["data"].items())
    assert data + len(json.dumps(book, separators=(",", ":"))) < MAX_OBJECT_LENGTH


NAMESPACE = "operands"


def daemonset(**spec: Any) -> Manifest:
    metadata = {"name": "plugin", "namespace": NAMESPACE}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"template": {"spec": spec}}}


def named(*manifests: Manifest) -> set[tuple[str, str, bool]]:
    return {(each.ref.kind, each.ref.name, each.is_required) for each in find_references({"device_plugin": manifests})}


@pytest.mark.parametrize("case", yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()), ids=str)
def test_references_of_pods_are_found(case: dict[str, Any]) -> None:
    assert named(daemonset(**case["spec"])) == set(map(tuple, case["refers_to"]))


def test_objects_of_the_stack_are_no_references() -> None:
    metadata = {"name": "a", "namespace": NAMESPACE}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    assert named(daemonset(volumes=[{"configMap": {"name": "a"}}]), made) == set()
    assert find_references(prepare(inventory(), fleet())[1]) == ()


def test_every_setting_that_names_an_object_is_found() -> None:
    """Whatever the components do with it."""
    driver = {
        "repo_config": "repos",
        "cert_config": "certificates",
        "kernel_module_config": "modules",
        "licensing_config": "licence",
        "secret_env": "variables",
        "virtual_topology": VirtualTopology(config="topology"),
        "image_pull_secrets": ("mirror",),
        "env": {"TOKEN": SecretKey(name="git", key="pat")},
    }
    found = {each.ref.name for each in find_references(prepare(with_spec("driver", **driver), fleet())[1])}
    assert found == {"repos", "certificates", "modules", "licence", "variables", "topology", "mirror", "git"}


CONFIG = ObjectRef("v1", "ConfigMap", NAMESPACE, "sharing")

PULL = ObjectRef("v1", "Secret", NAMESPACE, "mirror")

BOTH = daemonset(volumes=[{"configMap": {"name": "sharing"}}], imagePullSecrets=[{"name": "mirror"}])


def test_a_missing_object_is_one_error_before_pods_need_it() -> None:
    """Also if several components refer to it. Images may be pulled without a pull secret."""
    other = {**BOTH, "metadata": {**BOTH["metadata"], "name": "gfd"}}
    uses = find_references({"device_plugin": [BOTH], "gfd": [other]})
    error, warning = missing_findings(uses, {CONFIG, PULL}, {ref_of(other)}, {NAMESPACE})
    assert (error.severity, error.where) == (Severity.ERROR, "ConfigMap operands/sharing")
    assert "device_plugin, gfd" in error.what
    assert f"kubectl -n {NAMESPACE} create configmap sharing " in error.fix
    assert (warning.severity, warning.where) == (Severity.WARNING, "Secret operands/mirror")
    assert "docker-registry" in warning.fix


def test_pods_that_run_are_worth_a_warning() -> None:
    (found,) = missing_findings(find_references({"device_plugin": [BOTH]}), {CONFIG}, (), ())
    assert found.severity is Severity.WARNING
    assert "kubectl create namespace operands; " in found.fix


def test_unreadable_objects_are_one_warning() -> None:
    (found,) = unread_findings({CONFIG, PULL})
    assert (found.severity, found.where) == (Severity.WARNING, "ConfigMap operands/sharing, Secret operands/mirror")
    assert not [*unread_findings(())]


def test_objects_outside_the_selection_are_not_pruned() -> None:
    """The exporter is off by now; a run of the driver alone does not take it away."""
    stack = Stack()
    off = with_spec("dcgm_exporter", enabled=False)

    def deleted(part: RunSelection) -> set[str]:
        context, desired = prepare(off, stack.context.facts, part)
        changes = plan(context, desired, stack.observed).changes
        return {change.component for change in changes if change.action is Action.DELETE}

    assert deleted(ALL) == {"dcgm_exporter"}
    assert deleted(RunSelection(nodes=frozenset({"t4-1"}))) == {"dcgm_exporter"}, "it serves all nodes"
    assert deleted(select_part(off, ["driver"], [])) == set()


def test_left_out_parts_are_reported() -> None:
    """A part is not taken for the whole."""
    part = select_part(inventory(), ["dcgm_exporter"], ["t4-1", "cpu-1"])
    (finding,) = (item for item in inventory_findings(prepare(inventory(), fleet(), part)[0]) if item.code == "GP380")
    assert finding.evidence.endswith("(--target); nodes h100-1, t4-2 (--limit)")
    assert "gfd" in finding.evidence
    assert "toolkit" not in finding.evidence
    assert not any(item.code == "GP380" for item in inventory_findings(prepare(inventory(), fleet())[0]))
