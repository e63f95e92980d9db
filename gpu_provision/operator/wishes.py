"""What is asked of the keeper of a stack. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_provision.model.cluster import Manifest
from gpu_provision.operator.conditions import Halt, Standing
from gpu_provision.operator.stack import KEEP, ON_DELETE


@dataclass(frozen=True, slots=True)
class Wish:
    """A stack as it is to be looked after.

    Attributes:
        hindrance: Why it may not be worked on, if so.
    """

    stack: Manifest
    hindrance: Halt | None = None

    @property
    def name(self) -> str:
        """Of the stack."""
        return str(self.stack["metadata"]["name"])

    @property
    def generation(self) -> int:
        """Of the stack; it counts changes of what is declared, not those of the status."""
        return int(self.stack["metadata"].get("generation", 0))

    @property
    def is_to_go(self) -> bool:
        """Whether the stack is being deleted."""
        return bool(self.stack["metadata"].get("deletionTimestamp"))

    @property
    def is_to_be_released(self) -> bool:
        """Whether what the stack has installed stays when it is deleted."""
        return bool((self.stack["metadata"].get("annotations") or {}).get(ON_DELETE) == KEEP)

    def asks_the_same_as(self, other: Wish) -> bool:
        """Whether another wish for the stack changes nothing for whoever works on this one."""
        return self._essence == other._essence

    @property
    def _essence(self) -> tuple[object, ...]:
        is_to_be_released = self.is_to_go and self.is_to_be_released
        return self.stack["metadata"]["uid"], self.generation, self.is_to_go, is_to_be_released, self.hindrance

    def standing(self, **told: Any) -> Standing:
        """Return what is to be reported of the stack."""
        release = str((self.stack.get("spec") or {}).get("release", ""))
        return Standing(generation=self.generation, release=release, **told)
