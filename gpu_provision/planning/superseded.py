"""Validation pods that are not needed any more. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.diagnose import pods as pod_view
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.planning.states import Key, Situation
from gpu_provision.planning.verdicts import VALIDATIONS


def superseded(seen: Situation) -> Iterator[tuple[Key, Manifest]]:
    """Yield the validation pods that a run deletes: of other content, where none is wanted any more, or succeeded."""
    for key in (key for key in seen.pods if key[0] in VALIDATIONS and seen.context.part.has(*key)):
        part = seen.parts.get(key[0])
        wanted = part.single.get(key[1]) if part else None
        for pod in seen.pods[key]:
            is_needed = wanted and ref_of(wanted) == ref_of(pod) and pod_view.phase(pod) != "Succeeded"
            if not is_needed and not pod["metadata"].get("deletionTimestamp"):
                yield key, pod
