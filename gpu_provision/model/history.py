"""Records of runs, as the cluster and the local state directory store them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

OF_RESOURCE = "resource"
"""Source of a record whose inventory is a GPUStack."""


class Ending(StrEnum):
    """How a run ended."""

    RUNNING = "running"  # it has begun, and its process still holds the lock
    SUCCEEDED = "succeeded"  # everything was as declared
    FAILED = "failed"  # something was not
    INTERRUPTED = "interrupted"  # Ctrl-C, a kill, a lost lock, a lost machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run."""

    id: str  # its start time and a random suffix; names the record everywhere. Empty for no record.
    number: int = 0  # counts the runs of a stack from 1; 0 until it is known
    ending: Ending = Ending.RUNNING
    began: str = ""  # time in UTC, such as ``2026-11-21T11:20:00Z``
    ended: str = ""  # time in UTC; empty if it is not known
    holder: str = ""  # its process, as the lock names it
    tool: str = ""
    inventory: str = ""
    release: str = ""
    plan: str = ""  # digest of the planned changes
    changed: int = 0  # number of objects written
    reason: str = ""  # why it failed, or why it was started; may be empty
    back_to: int = 0  # number of the run that a rollback restored; 0 if it was no rollback
    # The inventory as it was written, without secrets; empty if it is not on record.
    text: str = field(default="", repr=False)
    lacks: str = ""  # why there is no text
    only: str = ""  # ``hosts`` if the run did not change the cluster, so that no rollback restores it; else empty
    # ``resource`` if a GPUStack declared it, whose text has no hosts. Empty for a file.
    source: str = ""

    @property
    def user(self) -> str:
        """The person and the machine: ``alice@laptop``."""
        return self.holder.partition(" pid ")[0]

    @property
    def is_of_resource(self) -> bool:
        """Whether its text is that of a GPUStack."""
        return self.source == OF_RESOURCE


@dataclass(frozen=True, slots=True)
class History:
    """The runs of a stack."""

    records: tuple[Record, ...]  # oldest first; every one has its number
    damaged: tuple[str, ...] = ()  # names of records that cannot be read

    def __iter__(self) -> Iterator[Record]:
        """Yield the runs, the oldest first."""
        return iter(self.records)

    def __len__(self) -> int:
        """Return how many runs are on record."""
        return len(self.records)

    def __getitem__(self, place: int) -> Record:
        """Return a run by its place: 0 is the oldest, -1 the newest; `find` returns one by its number."""
        return self.records[place]

    @property
    def last(self) -> Record | None:
        """The newest run that changed the cluster."""
        return next((record for record in reversed(self.records) if not record.only), None)

    def find(self, number: int) -> Record | None:
        """Return a run by its number; None if it is not on record."""
        return next((record for record in self.records if record.number == number), None)

    def find_previous(self, record: Record, is_same: Callable[[Record, Record], bool]) -> Record | None:
        """Return the newest run before one that succeeded with another inventory; None if there is none.

        Args:
            is_same: Whether two runs declared the same.
        """
        older = (each for each in reversed(self.records) if each.number < record.number)
        good = (each for each in older if each.ending is Ending.SUCCEEDED and each.text and not each.only)
        return next((each for each in good if not is_same(each, record)), None)
