"""GitOps tools that declare a GPUStack: Argo CD, Flux, Helm and others, and the warning before they revert a change."""

from __future__ import annotations

from typing import Literal

from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.operator.stack import KEEP, ON_DELETE, stack_label
from gpu_provision.planning.diff import FIELD_MANAGER
from gpu_provision.planning.managed_fields import managers_of

# Marks of GitOps tools: part of the metadata, key, the object that the value names, and the key of its namespace.
_GITOPS_MARKS = (
    ("annotations", "argocd.argoproj.io/tracking-id", "Argo CD's application", ""),
    ("labels", "argocd.argoproj.io/instance", "Argo CD's application", ""),
    ("labels", "kustomize.toolkit.fluxcd.io/name", "Flux's Kustomization", "kustomize.toolkit.fluxcd.io/namespace"),
    ("labels", "helm.toolkit.fluxcd.io/name", "Flux's HelmRelease", "helm.toolkit.fluxcd.io/namespace"),
    ("annotations", "meta.helm.sh/release-name", "Helm's release", "meta.helm.sh/release-namespace"),
    ("labels", "app.kubernetes.io/instance", "Argo CD or Helm, as", ""),
)

# Operation -> what, consequence and fix of the warning about another tool that declares the resource.
_DECLARED_ELSEWHERE = {
    "release": (
        "declares it, too, so that it may come back",
        "a controller manages the stack again",
        f"annotate it there with {ON_DELETE}: {KEEP}, then take it out there: the pruning releases the stack",
    ),
    "destroy": (
        "declares it, too, so that it may come back",
        "the controller installs the stack again",
        "take it out there: the pruning removes the stack, too",
    ),
    "take over": ("declares it, too, and may revert these fields", "the controller follows", "change it there"),
}


def managed_by(stack: Manifest) -> str:
    """Return the other tool that declares a GPUStack; empty if none is known."""
    for place, key, owner, namespace_key in _GITOPS_MARKS:
        values = stack["metadata"].get(place) or {}
        if name := str(values.get(key) or "").partition(":")[0]:  # a tracking id has more parts
            namespace = values.get(namespace_key)
            return f"{owner} {f'{namespace}/' if namespace else ''}{name}"
    tools = (name for name in other_spec_managers(stack) if not name.startswith("kubectl"))  # a person uses kubectl
    return next((f"the field manager {name}" for name in tools), "")


def other_spec_managers(live: Manifest) -> tuple[str, ...]:
    """Return the field managers of a stack's spec besides gpu-provision."""
    return tuple(sorted(managers_of(live, "spec") - {FIELD_MANAGER}))


def warn_if_declared_elsewhere(
    stack: Manifest, operation: Literal["release", "destroy", "take over"]
) -> tuple[Finding, ...]:
    """Return the warning that another tool declares a GPUStack and reverts an operation on it."""
    tool = managed_by(stack)
    if not tool:
        return ()
    what, consequence, fix = _DECLARED_ELSEWHERE[operation]
    warning = Finding(
        code=codes.DECLARED_ELSEWHERE,
        where=stack_label(stack),
        what=f"{tool} {what}",
        consequence=consequence,
        fix=fix,
        severity=Severity.WARNING,
    )
    return (warning,)
