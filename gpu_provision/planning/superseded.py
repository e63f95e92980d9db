"""Validation pods of content that is no longer wanted on their node. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.model.cluster import Manifest
from gpu_provision.planning.states import Key, Situation
from gpu_provision.planning.verdicts import VALIDATIONS


def superseded(seen: Situation) -> Iterator[tuple[Key, Manifest]]:
    """Yield the validation pods that a run deletes: of other content, or where none is wanted any more."""
    for key in (key for key in seen.pods if key[0] in VALIDATIONS and seen.context.part.has(*key)):
        part = seen.parts.get(key[0])
        wanted = part.single.get(key[1]) if part else None
        for pod in seen.pods[key]:
            if not (wanted and is_of(wanted, pod)) and not pod["metadata"].get("deletionTimestamp"):
                yield key, pod


def is_of(manifest: Manifest, pod: Manifest) -> bool:
    """Return whether a validation pod is of this content, which its name tells."""
    ours, theirs = manifest["metadata"], pod["metadata"]
    return bool(ours["name"] == theirs["name"] and ours["namespace"] == theirs["namespace"])
