"""The validations of one run: what they have shown, and the record of those whose pods go."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_provision.cluster import records
from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.observe import POD
from gpu_provision.components import device_plugin_validation, driver_validation, validator
from gpu_provision.components.labels import APP, COMPONENT, STACK
from gpu_provision.engine.reading import Reading
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.progress import Evidence
from gpu_provision.planning.states import Key, Situation
from gpu_provision.planning.superseded import superseded
from gpu_provision.planning.verdicts import RUNS_IN, VALIDATIONS, Verdict, verdict_of

_RUN_BY = {runs_in: validation for validation, runs_in in RUNS_IN.items()}


class Validations:
    """Takes verdicts off pods, and keeps on record those whose pods are deleted at the end.

    Attributes:
        passed: (component, node) -> the verdict as text, see `gpu_provision.planning.verdicts`.
        evidence: (component, node) -> what its vectorAdd printed in this run.
    """

    def __init__(self, cluster: Cluster, reading: Reading) -> None:
        """Start from the record as it was read."""
        self._cluster, self._inventory = cluster, reading.context.inventory
        known = reading.context
        self._targets = frozenset(target.name for target in (*known.targets, *known.others))
        self.passed: dict[Key, str] = dict(reading.observed.passed)
        self.evidence: dict[Key, Evidence] = {}
        self._taken: dict[str, Verdict] = {}
        self._is_first = True
        self._repeats = reading.revalidate
        self._recorded: dict[Key, str] | None = None if reading.revalidate else dict(self.passed)

    def take(self, seen: Situation) -> None:
        """Take what vectorAdds have shown since the last look; what they had shown before the run is no evidence.

        Args:
            seen: All nodes at first, then those that have changed.
        """
        is_old, self._is_first = self._is_first, False
        for (component, node), pods in seen.pods.items():
            for pod in pods if component in _RUN_BY and node else ():
                self._take((_RUN_BY[component], node), pod, seen, is_old=is_old)

    def _take(self, key: Key, pod: Manifest, seen: Situation, *, is_old: bool) -> None:
        uid, verdict = pod["metadata"]["uid"], verdict_of(pod)
        if verdict is None or uid in seen.observed.void or self._taken.get(uid) == verdict:
            return
        self._taken[uid] = verdict
        if verdict.passed and key[0] == device_plugin_validation.NAME:
            self.passed[key] = str(verdict)
        if not is_old:
            name = pod["metadata"]["name"]
            self.evidence[key] = Evidence(
                component=key[0], node=key[1], pod=name, passed=verdict.passed, lines=verdict.lines
            )

    def forget_repeated(self) -> None:
        """Take what runs again off the record: if it fails, no reader may find the old success there."""
        if self._repeats:
            self.record()

    def record(self) -> None:
        """Write the record if it is behind: one request, however many nodes. Until then the pods tell what passed."""
        if self.passed != self._recorded:
            records.write(self._cluster, self._inventory, self._of_targets(self.passed))
            self._recorded = dict(self.passed)

    def remove_succeeded(self, seen: Situation) -> bool:
        """Delete all pods that have succeeded in one request; return whether there were any.

        Pods of the first validation are of an earlier version, whose validator has left some of its own.
        """
        names = {component for (component, _), _ in superseded(seen)}
        selected = [f"{STACK}={self._inventory.name},{COMPONENT} in ({','.join(VALIDATIONS)})"] if names else []
        selected += [f"{APP}={validator.CUDA_POD}"] if driver_validation.NAME in names else []
        for labels in selected:
            namespace, succeeded = self._inventory.cluster.namespace, "status.phase=Succeeded"
            self._cluster.delete_all(POD, namespace, label_selector=labels, field_selector=succeeded)
        return bool(selected)

    def _of_targets(self, passed: Mapping[Key, str]) -> dict[Key, str]:
        """A node that left the inventory leaves the record, too."""
        return {key: digest for key, digest in passed.items() if key[1] in self._targets}
