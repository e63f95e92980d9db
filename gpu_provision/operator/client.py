"""A stack's resource: beside an inventory, what an apply makes of it, and its finalizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_provision.inventory.document import Document, Source
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import ConflictError, FieldConflictError, NotFoundError
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Refused, RunFailed, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import FieldChange, ResourceChange
from gpu_provision.operator.conflicts import managed_by, other_managers, warn_on_takeover
from gpu_provision.operator.crd import Schema, spec_schema
from gpu_provision.operator.stack import (
    FINALIZER,
    HOME,
    LED_BY,
    STACK,
    inventory_of,
    local_values,
    rollback_annotation,
    stack_label,
    stack_of,
)
from gpu_provision.operator.status import StackPhase, evaluate_status
from gpu_provision.planning.diff import FIELD_MANAGER, changes_between, differences

_CONFLICT = "GP304"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackResource:
    """A stack's resource beside an inventory.

    Attributes:
        live: As it was looked at.
        wanted: What the inventory makes of it; None if it declares the same already, or if that is unknown.
        fields: What that changes.
        findings: What is against it, and what a reader should know.
    """

    live: Manifest
    wanted: Manifest | None = None
    fields: tuple[FieldChange, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """As findings call it."""
        return stack_label(self.live)

    @property
    def change(self) -> ResourceChange:
        """As a plan tells it."""
        return ResourceChange(name=self.name, fields=self.fields)


def get_stack(cluster: Cluster, inventory: Inventory) -> Manifest | None:
    """Return the resource of an inventory's stack; None if no controller is to look after it."""
    return cluster.get(ObjectRef(*STACK, "", inventory.name))


def compare_stack(cluster: Cluster, inventory: Inventory, *, force: bool) -> StackResource | None:
    """Return the resource of an inventory's stack beside the inventory; None if there is none.

    A resource that is to change costs one request more: the server's own dry run.

    Args:
        force: Whether fields are taken over from other managers.

    Raises:
        Unreachable, Refused, Rejected: As the API server answers.
    """
    live = get_stack(cluster, inventory)
    if live is None:
        return None
    if live["metadata"].get("deletionTimestamp"):
        return StackResource(live=live, findings=(deletion_finding(live),))
    if not inventory.text:
        return StackResource(live=live, findings=(_has_no_text(live),))
    document = _document(inventory)
    if refused := local_values(document):
        return StackResource(live=live, findings=refused)
    wanted = stack_of({**document.data, "name": inventory.name})
    if specs_equivalent(live, wanted):
        return StackResource(live=live, findings=_standing(live))
    return _compared(cluster, live, wanted, force=force)


def _document(inventory: Inventory) -> Document:
    path = inventory.path or inventory.name
    source = Source(name=path, path=Path(path), text=inventory.text, digest=inventory.digest)
    return parse(source)[0]


def _compared(cluster: Cluster, live: Manifest, wanted: Manifest, *, force: bool) -> StackResource:
    try:
        after = _apply(cluster, wanted, live, force=force, dry_run=True)
    except FieldConflictError as conflict:
        told = tuple(replace(each, where=stack_label(live), fix=_fix_of_conflict(live)) for each in conflict.findings)
        return StackResource(live=live, wanted=wanted, fields=differences(wanted, live), findings=told)
    except Refused:  # a user who may only read gets a plan all the same
        return StackResource(live=live, wanted=wanted, fields=differences(wanted, live))
    left = () if specs_equivalent(after, wanted) or inventory_of(wanted)[0] is None else omitted_fields(after, wanted)
    fields = (*changes_between(live, after), *(replace(each, new=None) for each in left))
    told = warn_on_takeover(live) if force else (_left(live, left),) if left else ()
    return StackResource(live=live, wanted=wanted, fields=_of_spec(fields), findings=told)


def _of_spec(fields: tuple[FieldChange, ...]) -> tuple[FieldChange, ...]:
    by_path = {each.path: each for each in fields if each.path.partition(".")[0] == "spec"}
    return tuple(by_path[path] for path in sorted(by_path))


def apply_stack(cluster: Cluster, resource: StackResource, *, force: bool, back_to: int = 0) -> Manifest:
    """Make a resource declare what is desired, if it does not; return it as it is then.

    Args:
        back_to: Number of the run that declared this before, for the controller's record; 0 if it is no rollback.

    Raises:
        FieldConflictError: Another manager has set fields, in between.
        ConflictError: The resource has changed in between.
        Refused, Rejected, Unreachable: As the API server answers.
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
    cluster: Cluster,
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


def _standing(live: Manifest) -> tuple[Finding, ...]:
    """Return what a reader should know of a stack that says what is wanted, and has come to nothing."""
    found = evaluate_status(live)
    if found.phase is not StackPhase.FAILED:
        return ()
    return (replace(not_reached_finding(stack_label(live), found.told), severity=Severity.WARNING),)


def not_reached_finding(label: str, told: str) -> Finding:
    """Return what a controller says that has not made a stack as declared."""
    return Finding(
        code=codes.NOT_REACHED,
        where=label,
        what="the controller has not made the stack as it is declared",
        evidence=told,
        consequence="it tries again by itself, but for a rollout that it has taken back",
        fix=f"kubectl describe {label} tells more; mend the cause, or declare something else and apply that",
    )


def deletion_finding(live: Manifest) -> Finding:
    """Return the finding about a resource that is being deleted."""
    return Finding(
        code=codes.IN_BETWEEN,
        where=stack_label(live),
        what="the resource is being deleted, and the controller takes the stack off the cluster",
        fix=f"wait until it is gone (kubectl wait --for=delete {stack_label(live)}), then run again",
    )


def _has_no_text(live: Manifest) -> Finding:
    return Finding(
        code=codes.NOT_FOR_RESOURCE,
        where=stack_label(live),
        what="a controller looks after this stack by its resource, and an inventory that was made in Python has no "
        "text to change it to",
        fix="apply an inventory file, or change the resource itself",
    )


def _fix_of_conflict(live: Manifest) -> str:
    owner = managed_by(live) or ", ".join(other_managers(live)) or "its owner"
    return f"change it where {owner} has it from; or --take-over makes these fields ours"


def _left(live: Manifest, left: tuple[FieldChange, ...]) -> Finding:
    managers = ", ".join(other_managers(live)) or "another manager"
    return Finding(
        code=_CONFLICT,
        where=stack_label(live),
        what=f"another field manager owns what the inventory does not say: {managers}",
        evidence=", ".join(each.path for each in left),
        fix=f"take it out where {managed_by(live) or managers} has it from; or --take-over takes it out here",
    )


def raise_on_errors(resource: StackResource) -> None:
    """Raise RunFailed if something is against changing a resource."""
    if errors := [each for each in resource.findings if each.severity is Severity.ERROR]:
        raise RunFailed(*errors)


def specs_equivalent(one: Manifest, other: Manifest) -> bool:
    """Whether two stacks declare the same; what the loader refuses is the same as nothing."""
    meaning = _meaning(one)
    return meaning is not None and meaning == _meaning(other)


def _meaning(stack: Manifest) -> Inventory | None:
    inventory, _ = inventory_of(stack)
    return replace(inventory, text="", digest="") if inventory else None


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


def add_finalizer(cluster: Cluster, stack: ObjectRef, namespace: str, lease: str = "") -> None:
    """Have the API server wait for our removal before the stack goes, and write down where that is to look.

    Args:
        lease: By which controllers agree, for command lines to watch; empty for the usual one.
    """

    def change(metadata: Mapping[str, Any]) -> dict[str, Any]:
        found, notes = metadata.get("finalizers") or [], metadata.get("annotations") or {}
        held = {} if FINALIZER in found else {"finalizers": [*found, FINALIZER]}
        marks = {} if HOME in notes else {HOME: namespace}
        led_by = {} if notes.get(LED_BY, "") == lease else {LED_BY: lease or None}
        return {**held, "annotations": {**marks, **led_by}} if marks or led_by else held

    _change_metadata(cluster, stack, change)


def remove_finalizer(cluster: Cluster, stack: ObjectRef) -> None:
    """Let the stack go."""

    def change(metadata: Mapping[str, Any]) -> dict[str, Any]:
        found = metadata.get("finalizers") or []
        return {"finalizers": [each for each in found if each != FINALIZER]} if FINALIZER in found else {}

    _change_metadata(cluster, stack, change)


def _change_metadata(cluster: Cluster, stack: ObjectRef, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    while live := cluster.get(stack):
        wanted = change(live["metadata"])
        if not wanted:
            return
        with contextlib.suppress(ConflictError, NotFoundError):
            cluster.merge(stack, {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"], **wanted}})
            return
