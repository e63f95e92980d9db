"""What the right to write rests on besides a lock: of a controller's runs, that it leads.

A lock that is taken under a mandate says so. Whoever has the mandate after its holder need not watch such a lock
expire: that nobody writes under the mandate any more is known earlier.
"""

from __future__ import annotations

from typing import Protocol

from gpu_provision.cluster.holders import named_in
from gpu_provision.model.cluster import Manifest

MARK = "gpu-provision.io/mandate"
"""Annotation of a lock: under which mandate its holder writes, and who that is, as others may take the lock later."""


class Mandate(Protocol):
    """A right that ends by itself unless it is renewed, and that passes from one process to another."""

    @property
    def name(self) -> str:
        """The same for all that pass it to each other."""

    def await_renewal(self) -> bool:
        """Return once it is fresh; say whether that took any waiting. Raises Locked if it is gone."""

    def inherited_in(self, holder: str) -> float | None:
        """Return in how many seconds nothing that ``holder`` has sent under it can arrive any more.

        None if that is not known: it was not the one before us, or has given the mandate back.
        """


def mark_of(mandate: Mandate | None, holder: str) -> dict[str, str]:
    """Return the annotation of a lock that is taken under a mandate."""
    return {MARK: f"{mandate.name} {holder}"} if mandate else {}


def inherited_in(mandate: Mandate | None, lock: Manifest | None) -> float | None:
    """Return in how many seconds a lock may be taken from its holder, who had our mandate before us; None if not so."""
    holder = named_in(lock)
    if mandate is None or lock is None or not holder:
        return None
    is_under_it = (lock["metadata"].get("annotations") or {}).get(MARK) == mark_of(mandate, holder)[MARK]
    return mandate.inherited_in(holder) if is_under_it else None
