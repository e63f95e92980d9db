"""The validations of one run: their evidence, and the record of what has passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpu_provision.cluster import codes, records
from gpu_provision.cluster.client import Cluster
from gpu_provision.engine.actions import HarvestPod
from gpu_provision.engine.reading import Reading
from gpu_provision.model.findings import Finding, ProvisionError, Severity
from gpu_provision.model.progress import Evidence, NodeState, State
from gpu_provision.planning.states import Key

_PAUSE_SECONDS = 2.0


class Validations:
    """Takes the results of validation pods and keeps them on record.

    Attributes:
        passed: (component, node) -> the verdict, see `gpu_provision.planning.verdicts`.
        failed: (component, node) -> what the pod said last.
        evidence: (component, node) -> what the pod printed.
        harvested: Uids of pods whose result has been taken.
    """

    def __init__(self, cluster: Cluster, reading: Reading) -> None:
        """Start from the record as it was read."""
        self._cluster, self._inventory = cluster, reading.context.inventory
        known = reading.context
        self._targets = frozenset(target.name for target in (*known.targets, *known.others))
        self.passed: dict[Key, str] = dict(reading.observed.passed)
        self.failed: dict[Key, str] = {}
        self.evidence: dict[Key, Evidence] = {}
        self.harvested: set[str] = set()
        self._unread: dict[str, Finding] = {}
        # What is to be repeated leaves the record at once: should it fail, nobody may find the old success there.
        self._recorded: dict[Key, str] | None = None if reading.revalidate else dict(self.passed)
        self._due = 0.0

    def harvest(self, step: HarvestPod) -> None:
        """Take the result of a pod that has ended."""
        component, node = step.key
        lines = self._log(step) or tuple(filter(None, [step.cause]))
        self.harvested.add(step.uid)
        self.evidence[step.key] = Evidence(
            component=component, node=node, pod=step.ref.name, passed=step.passed, lines=lines
        )
        if step.passed:
            self.passed[step.key] = step.verdict
        else:
            said = next((line for line in reversed(lines) if line.strip()), "no output")
            self.failed[step.key] = f"the validation failed: {said}"

    def worded(self, states: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
        """Return the states, with what failed validations have printed as the reason."""
        failed = dict(self.failed)  # a copy: pods are harvested in other threads
        told = {key: state for key in failed if (state := states.get(key)) and state.state is State.FAILED}
        return {**states, **{key: replace(state, reason=failed[key]) for key, state in told.items()}}

    def _log(self, step: HarvestPod) -> tuple[str, ...]:
        try:
            return self._cluster.log(step.ref, step.container)
        except ProvisionError as error:
            self._unread.setdefault(step.ref.name, error.findings[0])
            return (f"(its log cannot be read: {error.findings[0].evidence or error.findings[0].what})",)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """One warning about all logs that could not be read, with the first cause."""
        first = next(iter(self._unread.values()), None)
        if first is None:
            return ()
        pods = f"{len(self._unread)} pods" if len(self._unread) > 1 else f"pod {next(iter(self._unread))}"
        what, consequence = f"the log of {pods} cannot be read", "their exit status alone says whether they passed"
        code, severity = codes.NO_LOGS, Severity.WARNING
        return (replace(first, code=code, what=what, consequence=consequence, severity=severity),)

    def is_due(self, now: float) -> bool:
        """Whether the record is behind and was not written within the last two seconds."""
        return now >= self._due and self.passed != self._recorded

    def record(self, now: float) -> None:
        """Write the record if it is behind: one request, however many nodes."""
        passed = dict(self.passed)
        if passed == self._recorded:
            return
        self._due = now + _PAUSE_SECONDS
        records.write(self._cluster, self._inventory, self._of_targets(passed))
        self._recorded = passed

    def _of_targets(self, passed: Mapping[Key, str]) -> dict[Key, str]:
        """A node that left the inventory leaves the record, too."""
        return {key: digest for key, digest in passed.items() if key[1] in self._targets}
