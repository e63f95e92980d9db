from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.operator.conflicts import managed_by, warn_on_destroy, warn_on_release, warn_on_takeover


def a_stack(manager: str = "gpu-provision", **metadata: Any) -> dict[str, Any]:
    """A stack whose spec a field manager has set."""
    fields = {"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    return {"metadata": {"name": "prod", "managedFields": [fields], **metadata}, "spec": {}}


FLUX = {"kustomize.toolkit.fluxcd.io/name": "gpu", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
HELM = {"meta.helm.sh/release-name": "gpu", "meta.helm.sh/release-namespace": "infra"}
OF_FLUX = {"helm.toolkit.fluxcd.io/name": "gpu", "helm.toolkit.fluxcd.io/namespace": "flux-system"}
TRACKED = {"argocd.argoproj.io/tracking-id": "gpu-stacks:gpu-provision.io/GPUStack:/prod"}


@pytest.mark.parametrize(
    ("stack", "who"),
    [
        (a_stack(annotations=TRACKED), "Argo CD's application gpu-stacks"),
        (a_stack(labels={"argocd.argoproj.io/instance": "gpu"}), "Argo CD's application gpu"),
        (a_stack(labels=FLUX), "Flux's Kustomization flux-system/gpu"),
        (a_stack(labels=OF_FLUX, annotations=HELM), "Flux's HelmRelease flux-system/gpu"),
        (a_stack(annotations=HELM), "Helm's release infra/gpu"),
        (a_stack(labels={"app.kubernetes.io/instance": "gpu"}), "Argo CD or Helm, as gpu"),
        (a_stack("Terraform"), "the field manager Terraform"),
        (a_stack("argocd-controller", annotations=TRACKED), "Argo CD's application gpu-stacks"),
    ],
)
def test_other_declaring_tool_is_known_by_name(stack: dict[str, Any], who: str) -> None:
    """So that its reader knows where to look."""
    assert managed_by(stack) == who


@pytest.mark.parametrize("manager", ["gpu-provision", "kubectl-edit", "kubectl-client-side-apply", "kubectl"])
def test_a_person_with_kubectl_brings_nothing_back(manager: str) -> None:
    """Nor do we."""
    stack = a_stack(manager, labels={"team": "ml"}, annotations=None)
    assert managed_by(stack) == ""
    assert (*warn_on_release(stack), *warn_on_destroy(stack), *warn_on_takeover(stack)) == ()


def test_what_comes_of_it_is_told_with_the_way_out() -> None:
    stack = a_stack(labels=FLUX)
    told = [warn_on_release(stack), warn_on_destroy(stack), warn_on_takeover(stack)]
    assert [(each.code, each.where, each.severity.value) for (each,) in told] == [
        ("GP435", "gpustack/prod", "warning")
    ] * 3
    (release,), (removal,), (taking,) = told
    assert "gpu-provision.io/on-delete: keep" in release.fix
    assert "installs the stack again" in removal.consequence
    assert "set back" in taking.what
