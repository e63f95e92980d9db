"""Compare a GPUStack with an inventory, and apply the inventory to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.inventory import load
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError
from gpu_provision.model.cluster import ref_of
from gpu_provision.operator.client import (
    StackResource,
    apply_stack,
    compare_stack,
    omitted_fields,
    removal_patch,
    specs_equivalent,
)
from gpu_provision.operator.gitops import managed_by, warn_if_declared_elsewhere
from gpu_provision.operator.stack import rollback_run, stack_of
from gpu_provision.sandbox.apiserver.rest import merge_patch
from tests.operator.conftest import SANDBOX, a_stack, data_of, store_form, stored_stack

NOW = load(SANDBOX)


def compare(cluster: KubeClient, more: str = "", *, force: bool = True) -> StackResource:
    found = compare_stack(cluster, replace(NOW, text=f"{NOW.text}{more}\n"), force=force)
    assert found is not None
    return found


def stop_after(after: int) -> str:
    return f"rollout: {{stop_after_failures: {after}}}"


def test_a_plan_names_who_declares_what_it_would_change(by_flux: KubeClient) -> None:
    """Without force it is an error; with force a warning that the other tool may revert the change."""
    for force, code in ((False, "GP304"), (True, "GP435")):
        (finding,) = compare(by_flux, stop_after(7), force=force).findings
        assert (finding.code, "Flux's Kustomization gpu" in f"{finding.what} {finding.fix}") == (code, True)
    assert compare(by_flux, stop_after(2)).findings == ()


def test_rollback_is_annotated_until_another_spec(by_flux: KubeClient) -> None:
    """Regardless of a remaining change after the takeover."""

    def declared(more: str, rollback_to: int = 0) -> int:
        return rollback_run(apply_stack(by_flux, compare(by_flux, more), force=True, rollback_to=rollback_to))

    assert declared(stop_after(7), rollback_to=3) == 3
    assert declared(stop_after(8)) == 0
    assert declared(stop_after(9), rollback_to=4) == 4
    edited = by_flux.merge_patch(ref_of(compare(by_flux).live), {"spec": {"rollout": {"stop_after_failures": 5}}})
    assert rollback_run(edited) == 0
    assert declared("", rollback_to=6) == 6


def test_status_may_change_between_look_and_write(by_flux: KubeClient) -> None:
    """Also for removed fields. A concurrent change of the spec is a conflict."""
    stack, with_more = ref_of(compare(by_flux).live), {"rollout": {"stop_after_failures": 2}, "history": {"keep": 5}}
    by_flux.merge_patch(stack, {"spec": with_more})
    resource = compare(by_flux, stop_after(7))
    by_flux.merge_patch(stack, {"status": {"observedGeneration": 1}}, part="status")
    assert "keep" not in apply_stack(by_flux, resource, force=True)["spec"].get("history", {})

    by_flux.merge_patch(stack, {"spec": with_more})
    resource = compare(by_flux, stop_after(7))
    by_flux.merge_patch(stack, {"spec": {"rollout": {"stop_after_failures": 4}}})
    with pytest.raises(ConflictError):
        apply_stack(by_flux, resource, force=True)


def test_a_resource_takes_no_value_of_this_machine(by_flux: KubeClient) -> None:
    """An apply fails before any write."""
    found = compare(by_flux, "driver: {env: {HOME: {env: HOME}}}", force=False)
    assert [(each.code, each.where.rpartition(" ")[2]) for each in found.findings] == [("GP432", "driver.env.HOME.env")]
    assert found.desired is None


def test_what_a_server_has_written_into_a_stack_says_nothing_new(file: Path) -> None:
    """Otherwise an unchanged apply would write."""
    wanted = stack_of(data_of(file))
    assert specs_equivalent(stored_stack(file), wanted)
    assert omitted_fields(stored_stack(file), wanted) == ()


@pytest.mark.parametrize(
    "other", [{"driver": {"version": "580.126.20"}}, {"rollout": {"max_parallel": 2}}, {"release": "26.3.0"}]
)
def test_another_declaration_is_another_meaning(other: dict[str, Any]) -> None:
    """Also without a change of objects. An invalid stack equals no other, so that an apply repairs it."""
    assert not specs_equivalent(a_stack(**other), a_stack())
    assert not specs_equivalent(a_stack(release="9.9.9"), a_stack(release="9.9.9"))


def test_omitted_fields_are_named_and_can_be_removed() -> None:
    """Server-side apply keeps the fields of other managers."""
    live = store_form(a_stack(dcgm={"enabled": True}, driver={"timeout": 77, "version": "580.126.20"}))
    wanted = a_stack(driver={"version": "580.126.20"})
    found = {each.path: each.old for each in omitted_fields(live, wanted)}
    assert found["spec.driver.timeout"] == 77
    assert found["spec.dcgm"]["enabled"] is True
    without = merge_patch(live["spec"], removal_patch(live["spec"], wanted["spec"]))
    assert specs_equivalent(store_form({**live, "spec": without}), wanted)


def test_a_list_that_holds_more_is_replaced() -> None:
    """A merge patch has no list items."""
    nodes = [{"name": "a", "pool": "gpu"}, {"name": "b", "pool": "gpu"}]
    assert removal_patch({"nodes": nodes}, {"nodes": nodes[:1]}) == {"nodes": nodes[:1]}
    assert removal_patch({"nodes": nodes}, {"nodes": nodes}) == {}


def managed_stack(manager: str = "gpu-provision", **metadata: Any) -> dict[str, Any]:
    fields = {"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    return {"metadata": {"name": "prod", "managedFields": [fields], **metadata}, "spec": {}}


FLUX = {"kustomize.toolkit.fluxcd.io/name": "gpu", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
OF_FLUX = {"helm.toolkit.fluxcd.io/name": "gpu", "helm.toolkit.fluxcd.io/namespace": "flux-system"}
HELM = {"meta.helm.sh/release-name": "gpu", "meta.helm.sh/release-namespace": "infra"}
TRACKED = {"argocd.argoproj.io/tracking-id": "gpu-stacks:gpu-provision.io/GPUStack:/prod"}


@pytest.mark.parametrize(
    ("manager", "labels", "annotations", "who"),
    [
        ("argocd-controller", {}, TRACKED, "Argo CD's application gpu-stacks"),
        ("gpu-provision", {"argocd.argoproj.io/instance": "gpu"}, {}, "Argo CD's application gpu"),
        ("gpu-provision", FLUX, {}, "Flux's Kustomization flux-system/gpu"),
        ("gpu-provision", OF_FLUX, HELM, "Flux's HelmRelease flux-system/gpu"),
        ("gpu-provision", {}, HELM, "Helm's release infra/gpu"),
        ("gpu-provision", {"app.kubernetes.io/instance": "gpu"}, {}, "Argo CD or Helm, as gpu"),
        ("Terraform", {}, {}, "the field manager Terraform"),
    ],
)
def test_other_declaring_tool_is_known_by_name(manager: str, labels: Any, annotations: Any, who: str) -> None:
    assert managed_by(managed_stack(manager, labels=labels, annotations=annotations)) == who


@pytest.mark.parametrize("manager", ["gpu-provision", "kubectl-edit", "kubectl-client-side-apply", "kubectl"])
def test_a_person_with_kubectl_brings_nothing_back(manager: str) -> None:
    """Neither does gpu-provision."""
    stack = managed_stack(manager, labels={"team": "ml"}, annotations=None)
    assert managed_by(stack) == ""
    assert warn_if_declared_elsewhere(stack, "destroy") == ()


def test_consequence_and_remedy_are_named() -> None:
    stack, expected = managed_stack(labels=FLUX), ("GP435", "gpustack/prod", "warning")
    found = [warn_if_declared_elsewhere(stack, each) for each in ("release", "destroy", "take over")]
    assert {(each.code, each.where, each.severity.value) for (each,) in found} == {expected}
    (release,), (removal,), (taking,) = found
    assert "gpu-provision.io/on-delete: keep" in release.fix
    assert "installs the stack again" in removal.consequence
    assert "may revert" in taking.what
