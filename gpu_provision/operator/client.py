"""Compare a GPUStack with an inventory, apply it, set its finalizer, and detect GitOps tools that declare it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from gpu_provision.operator.gitops import managed_by, other_spec_managers, warn_if_declared_elsewhere
from gpu_provision.operator.stack import (
    FINALIZER,
    LEASE_ANNOTATION,
    NAMESPACE_ANNOTATION,
    STACK,
    inventory_of,
    local_values,
    rollback_annotation,
    stack_label,
    stack_of,
)
from gpu_provision.operator.status import StackPhase, evaluate_status
from gpu_provision.planning.diff import FIELD_MANAGER, changes_between, differences


@dataclass(frozen=True, slots=True, kw_only=True)
class StackResource:
    """A GPUStack compared with an inventory."""

    live: Manifest  # the resource as it was read
    desired: Manifest | None = None  # the stack of the inventory; None if the resource equals it, or if it is unknown
    fields: tuple[FieldChange, ...] = ()  # changes from live to desired
    findings: tuple[Finding, ...] = ()  # errors and warnings about the change

    @property
    def name(self) -> str:
        """Return the name that findings use."""
        return stack_label(self.live)


def get_stack(cluster: KubeClient, inventory: Inventory) -> Manifest | None:
    """Return the GPUStack of an inventory; None if no GPUStack exists."""
    return cluster.get(ObjectRef(*STACK, "", inventory.name))


def compare_stack(cluster: KubeClient, inventory: Inventory, *, force: bool) -> StackResource | None:
    """Compare the GPUStack of an inventory with the inventory; return None if no GPUStack exists.

    A change costs one more request: the server-side dry run. ``force`` takes fields over from other field managers.
    Raises UnreachableError, ForbiddenError, InvalidError.
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
            what="a controller manages this stack, and an inventory made in Python has no text for its resource",
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
        findings = (replace(not_reached_finding(stack_label(live), status.summary), severity=Severity.WARNING),)
    return StackResource(live=live, findings=findings)


def _dry_run(cluster: KubeClient, live: Manifest, wanted: Manifest, *, force: bool) -> StackResource:
    try:
        after = _apply(cluster, wanted, live, force=force, dry_run=True)
    except FieldConflictError as conflict:
        owner = managed_by(live) or ", ".join(other_spec_managers(live)) or "its owner"
        fix = f"change it where {owner} declares it; or take these fields over: --take-over"
        found = tuple(replace(each, where=stack_label(live), fix=fix) for each in conflict.findings)
        return StackResource(live=live, desired=wanted, fields=differences(wanted, live), findings=found)
    except ForbiddenError:  # a user with read permission alone still gets a plan
        return StackResource(live=live, desired=wanted, fields=differences(wanted, live))
    left = () if specs_equivalent(after, wanted) or inventory_of(wanted)[0] is None else omitted_fields(after, wanted)
    changes = (*changes_between(live, after), *(replace(each, new=None) for each in left))
    by_path = {each.path: each for each in changes if each.path.partition(".")[0] == "spec"}
    fields = tuple(by_path[path] for path in sorted(by_path))
    if force or not left:
        found = warn_if_declared_elsewhere(live, "take over") if force else ()
        return StackResource(live=live, desired=wanted, fields=fields, findings=found)
    managers = ", ".join(other_spec_managers(live)) or "another manager"
    error = Finding(
        code="GP304",
        where=stack_label(live),
        what=f"another field manager owns fields that the inventory omits: {managers}",
        evidence=", ".join(each.path for each in left),
        fix=f"remove these fields where {managed_by(live) or managers} declares them, or here with --take-over",
    )
    return StackResource(live=live, desired=wanted, fields=fields, findings=(error,))


def apply_stack(cluster: KubeClient, resource: StackResource, *, force: bool, rollback_to: int = 0) -> Manifest:
    """Apply the desired GPUStack if it differs; return the live one.

    ``rollback_to`` is the number of the run that a rollback restores, for the controller's record; 0 if it is none.
    Raises FieldConflictError or ConflictError for a concurrent change, else ProvisionError as the API server answers.
    """
    wanted, live = resource.desired, resource.live
    if wanted is None:
        return live
    if force and (gone := removal_patch(live["spec"], wanted["spec"])):
        live = cluster.merge_patch(ref_of(live), {"metadata": _preconditions(live), "spec": gone})
    generation = int(live["metadata"]["generation"])
    after = _apply(cluster, wanted, live, force=force, annotations=rollback_annotation(rollback_to, generation + 1))
    if rollback_to and after["metadata"]["generation"] == generation:  # the spec was equal already
        after = _apply(cluster, wanted, after, force=force, annotations=rollback_annotation(rollback_to, generation))
    return after


def _apply(  # noqa: PLR0913 - object, precondition and options
    cluster: KubeClient,
    wanted: Manifest,
    live: Manifest,
    *,
    force: bool,
    dry_run: bool = False,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Apply a manifest to exactly the object that was read, with annotations."""
    marks = {"annotations": dict(annotations)} if annotations else {}
    manifest = {**wanted, "metadata": {**wanted["metadata"], **_preconditions(live), **marks}}
    try:
        return cluster.apply(manifest, dry_run=dry_run, take_back=force).object
    except FieldConflictError as conflict:
        if conflict.managers <= {FIELD_MANAGER}:  # own fields, written with another verb than apply
            return cluster.apply(manifest, dry_run=dry_run, take_back=True).object
        raise


def _preconditions(live: Manifest) -> Manifest:
    """Return the metadata that makes a write fail if the object has changed since it was read."""
    return {key: live["metadata"][key] for key in ("resourceVersion", "generation") if key in live["metadata"]}


def not_reached_finding(label: str, evidence: str) -> Finding:
    """Return the error that the controller has not reached the declared state."""
    return Finding(
        code=codes.RESOURCE_NOT_READY,
        where=label,
        what="the controller has not reached the declared state",
        evidence=evidence,
        consequence="the controller tries again, except after a rollback",
        fix=f"kubectl describe {label} shows why; repair the cause, or apply another spec",
    )


def deletion_finding(live: Manifest) -> Finding:
    """Return the error that the GPUStack is being deleted."""
    return Finding(
        code=codes.RESOURCE_CHANGED,
        where=stack_label(live),
        what="the resource is being deleted, and the controller uninstalls the stack",
        fix=f"wait until it is gone (kubectl wait --for=delete {stack_label(live)}), then run again",
    )


def specs_equivalent(one: Manifest, other: Manifest) -> bool:
    """Whether two stacks declare the same inventory; a stack that the loader refuses equals none."""
    inventories = (inventory_of(stack)[0] for stack in (one, other))
    first, second = (inventory and replace(inventory, text="", digest="") for inventory in inventories)
    return first is not None and first == second


def omitted_fields(live: Manifest, wanted: Manifest) -> tuple[FieldChange, ...]:
    """Return the spec fields that a desired stack omits, without defaults of the API server."""
    defaults = dict(_schema_defaults(spec_schema(), "spec"))
    changes = changes_between({"spec": live.get("spec") or {}}, {"spec": wanted.get("spec") or {}})
    gone = (change for change in changes if change.new is None and change.old is not None)
    return tuple(change for change in gone if change.old != defaults.get(change.path))


def _schema_defaults(schema: Schema, path: str) -> Iterator[tuple[str, Any]]:
    if "default" in schema:
        yield path, schema["default"]
    for key, part in schema.get("properties", {}).items():
        yield from _schema_defaults(part, f"{path}.{key}")


def removal_patch(live: Any, wanted: Any) -> Any:
    """Return the merge patch that removes from a live value all that the desired one omits.

    It replaces lists whole, since a merge patch has no list items. The API server restores defaults.
    """
    if not (isinstance(live, Mapping) and isinstance(wanted, Mapping)):
        return wanted
    below = ((key, value) for key, value in live.items() if isinstance(value, Mapping | list) and key in wanted)
    changed = {key: removal_patch(value, wanted[key]) for key, value in below if value != wanted[key]}
    return {key: None for key in live if key not in wanted} | {key: value for key, value in changed.items() if value}


def add_finalizer(cluster: KubeClient, stack: ObjectRef, namespace: str, lease: str = "") -> None:
    """Add the finalizer, and annotate the stack with its namespace and with a lease that is not the default one."""

    def change(finalizers: Sequence[str], annotations: Mapping[str, str]) -> Manifest:
        held = {} if FINALIZER in finalizers else {"finalizers": [*finalizers, FINALIZER]}
        marks: dict[str, Any] = {} if NAMESPACE_ANNOTATION in annotations else {NAMESPACE_ANNOTATION: namespace}
        marks |= {} if annotations.get(LEASE_ANNOTATION, "") == lease else {LEASE_ANNOTATION: lease or None}
        return held | ({"annotations": marks} if marks else {})

    _change_metadata(cluster, stack, change)


def remove_finalizer(cluster: KubeClient, stack: ObjectRef) -> None:
    """Remove the finalizer, so that the API server can delete the stack."""

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
            cluster.merge_patch(stack, {"metadata": {"resourceVersion": metadata["resourceVersion"], **wanted}})
            return
