"""Objects of cluster scope that others may have made before us, or put something into: do they go, or only our marks?

Pure. A namespace, a RuntimeClass or a CustomResourceDefinition is applied whether it was there or not. The API
server's books tell: what nobody else has ever written to was made by us.
"""

from __future__ import annotations

from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.plan import Action, Change, FieldChange
from gpu_provision.planning.compare import path_of
from gpu_provision.planning.membership import component_of
from gpu_provision.removal import codes
from gpu_provision.removal.ownership import labels_of_ours, makers

KINDS = frozenset({"Namespace", "RuntimeClass", "CustomResourceDefinition"})
_NAMED = 5


def change_of(item: Manifest, strangers: tuple[str, ...]) -> tuple[Change | None, Finding | None]:
    """Return what happens to an object, if anything, and what a reader should know of it.

    The manifest of an update is the merge patch that makes it.

    Args:
        item: A live object of one of KINDS.
        strangers: What others have in it, in words.
    """
    ref = ref_of(item)
    others = ", ".join(sorted(makers(item)))
    if others:
        return _released(item), _made_by_others(ref, others)
    if strangers:
        return _released(item), _not_empty(ref, strangers)
    return Change(component=component_of(item), action=Action.DELETE, ref=ref), None


def _released(item: Manifest) -> Change | None:
    """Take off the labels that we alone have set."""
    ours = labels_of_ours(item)
    if not ours:
        return None
    patch = {"metadata": {"uid": item["metadata"]["uid"], "labels": dict.fromkeys(ours)}}
    fields = tuple(FieldChange(path_of("metadata", "labels", key), value, None) for key, value in sorted(ours.items()))
    return Change(component=component_of(item), action=Action.UPDATE, ref=ref_of(item), fields=fields, manifest=patch)


def _made_by_others(ref: ObjectRef, others: str) -> Finding:
    return Finding(
        code=codes.NOT_OURS_ALONE,
        what="it stays without our labels: others have made it, or written to it",
        where=str(ref),
        evidence=f"field managers: {others}",
        fix=f"if nobody needs it: kubectl delete {ref.kind.lower()} {ref.name}",
        severity=Severity.WARNING,
    )


def _not_empty(ref: ObjectRef, strangers: tuple[str, ...]) -> Finding:
    more = f" and {len(strangers) - _NAMED} more" if len(strangers) > _NAMED else ""
    return Finding(
        code=codes.NOT_OURS_ALONE,
        what="it stays without our labels, for it would take what others have in it along",
        where=str(ref),
        evidence=", ".join(strangers[:_NAMED]) + more,
        fix=f"when that is gone: kubectl delete {ref.kind.lower()} {ref.name}",
        severity=Severity.WARNING,
    )
