"""What was read of a cluster, and the plan that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_provision.kube.observe import Listed
from gpu_provision.model.cluster import Context
from gpu_provision.model.codes import ABSENT
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.plan import Plan
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.states import Desired


@dataclass(frozen=True, slots=True)
class Reading:
    """What was wanted, what was seen, and the plan between the two.

    Attributes:
        revalidate: Whether validations run again although they have passed.
        listed: What a run of it can follow from there, without asking for it again.
        refused: What the server said to a dry run that our user may not ask for; empty if it did all of them.
    """

    context: Context
    desired: Desired
    observed: Observed
    plan: Plan
    revalidate: bool = False
    refused: str = ""
    listed: Listed = field(default_factory=dict)


def refusals_of(reading: Reading) -> tuple[Finding, ...]:
    """Return why no run may begin: what was found before the first write."""
    return tuple(item for item in reading.plan.findings if item.severity is Severity.ERROR and item.code in _REFUSE)


_REFUSE = frozenset({ABSENT, "GP304", "GP305", "GP309", "GP382"})
