"""The origin of each change: drift, or an inventory that was not applied yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.plan import Action, Change, Difference, FieldChange, FieldDrift, Origin
from gpu_provision.planning.applyset import digest_of
from gpu_provision.planning.diff import differences
from gpu_provision.planning.managed_fields import Owners, is_ours, last_of_others, overlap, owners, writers_of

_ALARMING = (Origin.DRIFT, Origin.EITHER, Origin.PENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownState:
    """What tells drift from a changed inventory.

    Attributes:
        applied: Objects as the last run applied them; None if no record tells.
    """

    live: Mapping[ObjectRef, Manifest]  # objects as they are, those of changed nodes included
    applied: Mapping[ObjectRef, Manifest] | None = None


def find_drift(changes: Iterable[Change], known: KnownState) -> tuple[Difference, ...]:
    """Return every change of a plan with its origin.

    With a record of what was applied, drift is what differs from that. Without one the field managers tell: a field
    that is ours has the value that we applied; one that another manager owns has not. A field or an object that is not
    there has no manager, and may be either; of a pod template the digest tells.
    """
    found = tuple(_difference(change, known) for change in changes)
    if known.applied is None and any(each.origin is Origin.PENDING for each in found):
        # A validation that has not run is of the content that is pending, as far as anything tells.
        return tuple(replace(each, origin=Origin.PENDING) if each.action is Action.RUN else each for each in found)
    return found


def _difference(change: Change, known: KnownState) -> Difference:
    fields = tuple(_fields(change, known)) if change.action is Action.UPDATE else ()
    return Difference(
        component=change.component,
        ref=change.ref,
        action=change.action,
        origin=min((each.origin for each in fields), key=_ALARMING.index) if fields else _of_object(change, known),
        fields=fields,
        notes=() if change.action is Action.UPDATE else change.effects,
        nodes=change.nodes if change.action is Action.WAIT else (),
    )


def _of_object(change: Change, known: KnownState) -> Origin:
    was_applied = None if known.applied is None else change.ref in known.applied
    match change.action:
        case Action.CREATE:
            if was_applied is None:
                return Origin.EITHER if known.live else Origin.PENDING
            return Origin.DRIFT if was_applied else Origin.PENDING
        case Action.DELETE:
            return Origin.DRIFT if was_applied is False else Origin.PENDING
        case Action.RUN:
            return Origin.PENDING if was_applied is False else Origin.NOT_READY
        case Action.WAIT | Action.UPDATE:
            return Origin.NOT_READY


def _fields(change: Change, known: KnownState) -> Iterable[FieldDrift]:
    live = known.live.get(change.ref, {})
    books = owners(live)
    changed_since: frozenset[str] | None = None
    if known.applied is not None:
        applied = known.applied.get(change.ref)
        changed = differences(applied, live) if applied else ()
        changed_since = frozenset(each.path for each in changed if each.old != each.new)
    template = _of_template(change.manifest, live)
    for field in change.fields:
        yield _field(field, books, changed_since, template)


def _field(field: FieldChange, books: Owners, changed_since: frozenset[str] | None, template: Origin) -> FieldDrift:
    writers = writers_of(field.path, books)
    if changed_since is not None:
        origin = Origin.DRIFT if any(overlap(field.path, each) for each in changed_since) else Origin.PENDING
    elif field.old is None:
        origin = template if field.path.startswith("spec.template.") else Origin.EITHER
    elif is_ours(writers):
        origin = Origin.PENDING
    else:
        origin = Origin.DRIFT if writers else Origin.EITHER
    writer = last_of_others(writers) if origin is Origin.DRIFT and field.old is not None else None
    return FieldDrift(path=field.path, declared=field.new, found=field.old, origin=origin, writer=writer)


def _of_template(declared: Manifest | None, live: Manifest) -> Origin:
    """Return the origin of what a pod template lacks: its digest, which is ours, says which content was applied."""
    wanted, applied = (digest_of(each.get("spec", {}).get("template") or {}) for each in (declared or {}, live))
    if not (wanted and applied):
        return Origin.EITHER
    return Origin.DRIFT if wanted == applied else Origin.PENDING
