"""Who else declares a stack's resource, such as GitOps: what is deleted or changed here comes back from there. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.operator import codes
from gpu_provision.operator.meaning import other_managers
from gpu_provision.operator.stack import KEEP, ON_DELETE, label_of

_BY_HAND = "kubectl"  # as field managers of its subcommands begin


class _Mark(NamedTuple):
    """How a tool marks what it declares.

    Attributes:
        place: Where in the metadata.
        owner: What the value names.
        namespace: Key of where that is; empty if there is none.
    """

    place: str
    key: str
    owner: str
    namespace: str = ""


_MARKS = (
    _Mark("annotations", "argocd.argoproj.io/tracking-id", "Argo CD's application"),
    _Mark("labels", "argocd.argoproj.io/instance", "Argo CD's application"),
    _Mark(
        "labels",
        "kustomize.toolkit.fluxcd.io/name",
        "Flux's Kustomization",
        "kustomize.toolkit.fluxcd.io/namespace",
    ),
    _Mark("labels", "helm.toolkit.fluxcd.io/name", "Flux's HelmRelease", "helm.toolkit.fluxcd.io/namespace"),
    _Mark("annotations", "meta.helm.sh/release-name", "Helm's release", "meta.helm.sh/release-namespace"),
    _Mark("labels", "app.kubernetes.io/instance", "Argo CD or Helm, as"),
)


def declarer(stack: Manifest) -> str:
    """Return who else declares a stack's resource, as people call it; empty for nobody that is known."""
    found = (_named(stack, mark) for mark in _MARKS)
    return next(filter(None, found), _manager(stack))


def _named(stack: Manifest, mark: _Mark) -> str:
    values = stack["metadata"].get(mark.place) or {}
    name = str(values.get(mark.key) or "").partition(":")[0]  # a tracking id goes on with the object
    home = values.get(mark.namespace)
    return f"{mark.owner} {f'{home}/' if home else ''}{name}" if name else ""


def _manager(stack: Manifest) -> str:
    """Return the field manager of the spec that is neither us nor somebody at a keyboard."""
    found = (name for name in other_managers(stack) if not name.startswith(_BY_HAND))
    return next((f"the field manager {name}" for name in found), "")


def against_release(stack: Manifest) -> tuple[Finding, ...]:
    """Return the warning that a stack's resource comes back once it is released."""
    return _comes_back(
        stack,
        "a controller looks after the stack again",
        f"annotate it there with {ON_DELETE}: {KEEP}, then take it out there: its being pruned is the release",
    )


def against_removal(stack: Manifest) -> tuple[Finding, ...]:
    """Return the warning that a stack's resource comes back once the stack is removed."""
    return _comes_back(
        stack, "the controller installs the stack again", "take it out there: its being pruned removes the stack, too"
    )


def against_taking(stack: Manifest) -> tuple[Finding, ...]:
    """Return the warning that fields of a stack's resource are set back once they are taken over."""
    return _warned(
        stack, "declares it, too, and may set back what is taken over", "the controller follows", "change it there"
    )


def _comes_back(stack: Manifest, consequence: str, fix: str) -> tuple[Finding, ...]:
    return _warned(stack, "declares it, too, so that it may come back", consequence, fix)


def _warned(stack: Manifest, what: str, consequence: str, fix: str) -> tuple[Finding, ...]:
    who = declarer(stack)
    if not who:
        return ()
    label = label_of(stack["metadata"]["name"])
    told = {"code": codes.DECLARED_ELSEWHERE, "where": label, "what": f"{who} {what}", "fix": fix}
    return (Finding(**told, consequence=consequence, severity=Severity.WARNING),)
