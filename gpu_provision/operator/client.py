"""A stack's resource as a client sees it: compared with an inventory, applied, its finalizer, and GitOps tools."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gpu_provision.inventory.document import Source
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError, FieldConflictError, NotFoundError
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import FieldChange
from gpu_provision.operator.crd import Schema, spec_schema
from gpu_provision.operator.stack import (
    FINALIZER,
    HOME,
    KEEP,
    LED_BY,
    ON_DELETE,
    STACK,
    inventory_of,
    local_values,
    rollback_annotation,
    stack_label,
    stack_of,
)
from gpu_provision.operator.status import StackPhase, evaluate_status
from gpu_provision.planning.diff import FIELD_MANAGER, changes_between, differences
from gpu_provision.planning.managed_fields import managers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StackResource:
    """A stack's resource beside an inventory."""

    live: Manifest  # the resource as it was read
    wanted: Manifest | None = None  # what the inventory makes of it; None if that is declared already, or unknown
    fields: tuple[FieldChange, ...] = ()  # what that changes
    findings: tuple[Finding, ...] = ()  # what is against it, and what a reader should know

    @property
    def name(self) -> str:
        """Return its name as findings have it."""
        return stack_label(self.live)


def get_stack(cluster: KubeClient, inventory: Inventory) -> Manifest | None:
    """Return the resource of an inventory's stack; None if no controller is to look after it."""
    return cluster.get(ObjectRef(*STACK, "", inventory.name))


def compare_stack(cluster: KubeClient, inventory: Inventory, *, force: bool) -> StackResource | None:
    """Return the resource of an inventory's stack beside the inventory; None if there is none.

    A resource that is to change costs one request more: the server's own dry run. With ``force`` fields are taken over
    from other managers. Raises UnreachableError, ForbiddenError, InvalidError.
    """
    live = get_stack(cluster, inventory)
    if live is None:
        return None
    if live["metadata"].get("deletionTimestamp"):
        return StackResource(live=live, findings=(deletion_finding(live),))
    if not inventory.text:
        refusal = Finding(
            code=codes.NOT_FOR_RESOURCE,
            where=stack_label(live),
            what="a controller looks after this stack by its resource, and an inventory that was made in Python has no "
            "text to change it to",
            fix="apply an inventory file, or change the resource itself",
        )
        return StackResource(live=live, findings=(refusal,))
    path = inventory.path or inventory.name
    document, _ = parse(Source(name=path, path=Path(path), text=inventory.text, digest=inventory.digest))
    if refused := local_values(document):
        return StackResource(live=live, findings=refused)
    wanted = stack_of({**document.data, "name": inventory.name})
    if not specs_equivalent(live, wanted):
        return _dry_run(cluster, live, wanted, force=force)
    status, findings = evaluate_status(live), tuple[Finding, ...]()
    if status.phase is StackPhase.FAILED:
        findings = (replace(not_reached_finding(stack_label(live), status.told), severity=Severity.WARNING),)
    return StackResource(live=live, findings=findings)


def _dry_run(cluster: KubeClient, live: Manifest, wanted: Manifest, *, force: bool) -> StackResource:
    try:
        after = _apply(cluster, wanted, live, force=force, dry_run=True)
    except FieldConflictError as conflict:
        owner = managed_by(live) or ", ".join(other_managers(live)) or "its owner"
        fix = f"change it where {owner} has it from; or --take-over makes these fields ours"
        found = tuple(replace(each, where=stack_label(live), fix=fix) for each in conflict.findings)
        return StackResource(live=live, wanted=wanted, fields=differences(wanted, live), findings=found)
    except ForbiddenError:  # a user who may only read gets a plan all the same
        return StackResource(live=live, wanted=wanted, fields=differences(wanted, live))
    left = () if specs_equivalent(after, wanted) or inventory_of(wanted)[0] is None else omitted_fields(after, wanted)
    changes = (*changes_between(live, after), *(replace(each, new=None) for each in left))
    by_path = {each.path: each for each in changes if each.path.partition(".")[0] == "spec"}
    fields = tuple(by_path[path] for path in sorted(by_path))
    if force or not left:
        found = warn_if_declared_elsewhere(live, "take over") if force else ()
        return StackResource(live=live, wanted=wanted, fields=fields, findings=found)
    managers = ", ".join(other_managers(live)) or "another manager"
    error = Finding(
        code="GP304",
        where=stack_label(live),
        what=f"another field manager owns what the inventory does not say: {managers}",
        evidence=", ".join(each.path for each in left),
        fix=f"take it out where {managed_by(live) or managers} has it from; or --take-over takes it out here",
    )
    return StackResource(live=live, wanted=wanted, fields=fields, findings=(error,))


def apply_stack(cluster: KubeClient, resource: StackResource, *, force: bool, back_to: int = 0) -> Manifest:
    """Make a resource declare what is desired, if it does not; return it as it is then.

    ``back_to`` is the number of the run that declared this before, for the controller's record; 0 if it is no rollback.
    Raises FieldConflictError or ConflictError for a change in between, else ProvisionError as the API server answers.
    """
    wanted, live = resource.wanted, resource.live
    if wanted is None:
        return live
    if force and (gone := removal_patch(live["spec"], wanted["spec"])):
        live = cluster.merge(ref_of(live), {"metadata": _version(live), "spec": gone})
    generation = int(live["metadata"]["generation"])
    after = _apply(cluster, wanted, live, force=force, notes=rollback_annotation(back_to, generation + 1))
    if back_to and after["metadata"]["generation"] == generation:  # nothing was left to change
        after = _apply(cluster, wanted, after, force=force, notes=rollback_annotation(back_to, generation))
    return after


def _apply(  # noqa: PLR0913 - what, on what, and how
    cluster: KubeClient,
    wanted: Manifest,
    live: Manifest,
    *,
    force: bool,
    dry_run: bool = False,
    notes: Mapping[str, str] | None = None,
) -> Manifest:
    """Apply a resource to exactly the object that was looked at, with annotations."""
    annotations = {"annotations": dict(notes)} if notes else {}
    manifest = {**wanted, "metadata": {**wanted["metadata"], **_version(live), **annotations}}
    try:
        return cluster.apply(manifest, dry_run=dry_run, take_back=force).object
    except FieldConflictError as conflict:
        if conflict.managers <= {FIELD_MANAGER}:  # taken over from others, with another verb than apply
            return cluster.apply(manifest, dry_run=dry_run, take_back=True).object
        raise


def _version(live: Manifest) -> Manifest:
    """Return what a write carries that is about what was looked at, whatever its status says by then."""
    return {key: live["metadata"][key] for key in ("resourceVersion", "generation") if key in live["metadata"]}


def not_reached_finding(label: str, told: str) -> Finding:
    """Return what a controller says that has not made a stack as declared."""
    return Finding(
        code=codes.RESOURCE_NOT_READY,
        where=label,
        what="the controller has not made the stack as it is declared",
        evidence=told,
        consequence="it tries again by itself, but for a rollout that it has taken back",
        fix=f"kubectl describe {label} tells more; mend the cause, or declare something else and apply that",
    )


def deletion_finding(live: Manifest) -> Finding:
    """Return the finding about a resource that is being deleted."""
    return Finding(
        code=codes.RESOURCE_CHANGED,
        where=stack_label(live),
        what="the resource is being deleted, and the controller takes the stack off the cluster",
        fix=f"wait until it is gone (kubectl wait --for=delete {stack_label(live)}), then run again",
    )


def specs_equivalent(one: Manifest, other: Manifest) -> bool:
    """Whether two stacks declare the same; one that the loader refuses equals none."""
    first, second = (found and replace(found, text="", digest="") for found, _ in map(inventory_of, (one, other)))
    return first is not None and first == second


def omitted_fields(live: Manifest, wanted: Manifest) -> tuple[FieldChange, ...]:
    """Return the fields of a stack's spec that another one does not say, and that are no defaults of the server's."""
    defaults = dict(_defaults(spec_schema(), "spec"))
    changes = changes_between({"spec": live.get("spec") or {}}, {"spec": wanted.get("spec") or {}})
    gone = (change for change in changes if change.new is None and change.old is not None)
    return tuple(change for change in gone if change.old != defaults.get(change.path))


def _defaults(schema: Schema, path: str) -> Iterator[tuple[str, Any]]:
    if "default" in schema:
        yield path, schema["default"]
    for key, part in schema.get("properties", {}).items():
        yield from _defaults(part, f"{path}.{key}")


def removal_patch(live: Any, wanted: Any) -> Any:
    """Return the merge patch that takes away of a value what another one does not say.

    Lists are as wanted then, as a merge patch knows no items. Defaults come back by themselves.
    """
    if not (isinstance(live, Mapping) and isinstance(wanted, Mapping)):
        return wanted
    below = ((key, value) for key, value in live.items() if isinstance(value, Mapping | list) and key in wanted)
    changed = {key: removal_patch(value, wanted[key]) for key, value in below if value != wanted[key]}
    return {key: None for key in live if key not in wanted} | {key: value for key, value in changed.items() if value}


def add_finalizer(cluster: KubeClient, stack: ObjectRef, namespace: str, lease: str = "") -> None:
    """Hold a stack with our finalizer, and annotate its namespace and, unless it is the default, the leader's lease."""

    def change(finalizers: Sequence[str], notes: Mapping[str, str]) -> Manifest:
        held = {} if FINALIZER in finalizers else {"finalizers": [*finalizers, FINALIZER]}
        marks: dict[str, Any] = {} if HOME in notes else {HOME: namespace}
        marks |= {} if notes.get(LED_BY, "") == lease else {LED_BY: lease or None}
        return held | ({"annotations": marks} if marks else {})

    _change_metadata(cluster, stack, change)


def remove_finalizer(cluster: KubeClient, stack: ObjectRef) -> None:
    """Let the stack go."""

    def change(finalizers: Sequence[str], _notes: object) -> Manifest:
        left = [each for each in finalizers if each != FINALIZER]
        return {"finalizers": left} if FINALIZER in finalizers else {}

    _change_metadata(cluster, stack, change)


def _change_metadata(
    cluster: KubeClient, stack: ObjectRef, change: Callable[[Sequence[str], Mapping[str, str]], Manifest]
) -> None:
    while live := cluster.get(stack):
        metadata = live["metadata"]
        wanted = change(metadata.get("finalizers") or (), metadata.get("annotations") or {})
        if not wanted:
            return
        with contextlib.suppress(ConflictError, NotFoundError):
            cluster.merge(stack, {"metadata": {"resourceVersion": metadata["resourceVersion"], **wanted}})
            return


# How GitOps tools mark what they declare: where in the metadata, by which key, what the value names, and the key of
# the namespace where that is.
_MARKS = (
    ("annotations", "argocd.argoproj.io/tracking-id", "Argo CD's application", ""),
    ("labels", "argocd.argoproj.io/instance", "Argo CD's application", ""),
    ("labels", "kustomize.toolkit.fluxcd.io/name", "Flux's Kustomization", "kustomize.toolkit.fluxcd.io/namespace"),
    ("labels", "helm.toolkit.fluxcd.io/name", "Flux's HelmRelease", "helm.toolkit.fluxcd.io/namespace"),
    ("annotations", "meta.helm.sh/release-name", "Helm's release", "meta.helm.sh/release-namespace"),
    ("labels", "app.kubernetes.io/instance", "Argo CD or Helm, as", ""),
)

# Operation -> what a tool that declares the resource as well does, what comes of it, and what to do.
_ELSEWHERE = {
    "release": (
        "declares it, too, so that it may come back",
        "a controller looks after the stack again",
        f"annotate it there with {ON_DELETE}: {KEEP}, then take it out there: its being pruned is the release",
    ),
    "destroy": (
        "declares it, too, so that it may come back",
        "the controller installs the stack again",
        "take it out there: its being pruned removes the stack, too",
    ),
    "take over": ("declares it, too, and may set back what is taken over", "the controller follows", "change it there"),
}


def managed_by(stack: Manifest) -> str:
    """Return which other tool declares a stack's resource; empty for none that is known."""
    for place, key, owner, namespace_key in _MARKS:
        values = stack["metadata"].get(place) or {}
        if name := str(values.get(key) or "").partition(":")[0]:  # a tracking id goes on with the object
            namespace = values.get(namespace_key)
            return f"{owner} {f'{namespace}/' if namespace else ''}{name}"
    tools = (name for name in other_managers(stack) if not name.startswith("kubectl"))  # kubectl: a person
    return next((f"the field manager {name}" for name in tools), "")


def other_managers(live: Manifest) -> tuple[str, ...]:
    """Return who else than gpu-provision has set fields of a stack's spec."""
    return tuple(sorted(managers_of(live, "spec") - {FIELD_MANAGER}))


def warn_if_declared_elsewhere(
    stack: Manifest, operation: Literal["release", "destroy", "take over"]
) -> tuple[Finding, ...]:
    """Return the warning that another tool declares a stack's resource, and will undo an operation on it."""
    tool = managed_by(stack)
    if not tool:
        return ()
    what, consequence, fix = _ELSEWHERE[operation]
    warning = Finding(
        code=codes.DECLARED_ELSEWHERE,
        where=stack_label(stack),
        what=f"{tool} {what}",
        consequence=consequence,
        fix=fix,
        severity=Severity.WARNING,
    )
    return (warning,)
