"""Who may carry a run out in our place: whoever looks after the stack from within the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gpu_provision.cluster.client import Cluster
from gpu_provision.engine.reading import Reading
from gpu_provision.engine.run import Outcome
from gpu_provision.model.findings import Finding
from gpu_provision.model.progress import Event, NodeState
from gpu_provision.planning.states import Key


class Conduct(Protocol):
    """One run; see `gpu_provision.engine.run.Run`."""

    @property
    def is_following(self) -> bool:
        """Whether all is written, and what becomes of it is followed."""

    @property
    def going_on(self) -> str:
        """What goes on without this process if the run is cancelled now, as a sentence; empty if nothing does."""

    def execute(self) -> Outcome:
        """Carry the plan out, or see it carried out. Raises ProvisionError."""

    def left_behind(self) -> tuple[Finding, ...]:
        """Return warnings about what stays half done if the run has ended here; from any thread."""

    def cancel(self) -> None:
        """End after the current step; from any thread."""


class Make(Protocol):
    """Makes a run; nothing is written. Callbacks are called from the executing thread."""

    def __call__(
        self,
        cluster: Cluster,
        reading: Reading,
        *,
        listen: Callable[[Event], None],
        on_states: Callable[[Mapping[Key, NodeState]], None],
        back_to: int,
    ) -> Conduct:
        """Return the run of a reading."""


class Deputy(Protocol):
    """Somebody who looks after stacks in the cluster, if somebody is there."""

    def reviewed(self, cluster: Cluster, reading: Reading) -> Reading:
        """Return a reading whose plan says by what resource it is carried out, if that is so, and what is against it.

        Raises Unreachable, Refused.
        """

    @property
    def conduct(self) -> Make:
        """Makes the run that is carried out there, of a reading that was reviewed."""
