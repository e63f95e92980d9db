"""What differs between two sets of desired manifests, whatever a cluster has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.plan import Action, Change
from gpu_provision.planning.compare import changes_between

Manifests = Mapping[str, Sequence[Manifest]]
"""Component -> its manifests."""


def between(before: Manifests, after: Manifests) -> tuple[Change, ...]:
    """Return what changes from one set to the other: objects in the order of the new one, then those that go.

    Pods are validations, one for each content: new ones run, and nobody deletes old ones.
    """
    old, new = _by_ref(before), _by_ref(after)
    gone = (
        Change(component=component, action=Action.DELETE, ref=ref)
        for ref, (component, _) in old.items()
        if ref not in new and ref.kind != "Pod"
    )
    return (*_changed(old, new), *gone)


def _by_ref(manifests: Manifests) -> dict[ObjectRef, tuple[str, Manifest]]:
    return {ref_of(item): (component, item) for component, items in manifests.items() for item in items}


def _changed(
    old: Mapping[ObjectRef, tuple[str, Manifest]], new: Mapping[ObjectRef, tuple[str, Manifest]]
) -> Iterator[Change]:
    for ref, (component, manifest) in new.items():
        if ref not in old:
            action = Action.RUN if ref.kind == "Pod" else Action.CREATE
            yield Change(component=component, action=action, ref=ref, manifest=manifest)
        elif fields := changes_between(old[ref][1], manifest):
            yield Change(component=component, action=Action.UPDATE, ref=ref, fields=fields, manifest=manifest)
