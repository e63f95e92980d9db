"""What planning looks at: one consistent reading of the cluster, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.model.cluster import ClusterFacts, Manifest, ObjectRef
from gpu_provision.model.progress import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One reading of a cluster.

    Attributes:
        cluster: The cluster as people name it: its context.
        facts: Version, nodes, served resources.
        members: Live objects that carry our membership, by reference.
        namespaces: Names of existing namespaces.
        pods: Pods of our components, by reference; validation pods included.
        passed: Validations on record: (component, node) -> the verdict, see `gpu_provision.planning.verdicts`.
        void: Uids of pods whose vectorAdd does not count, since it is to run again.
        lock: Who writes right now; None if nobody does.
        lock_version: Version of the lock's object; it changes with everybody who takes, renews or gives it back.
    """

    cluster: str
    facts: ClusterFacts
    members: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    pods: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    passed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    void: frozenset[str] = frozenset()
    lock: Lock | None = None
    lock_version: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether the cluster has anything of the stack besides definitions, which a removal leaves."""
        return any(ref.kind != "CustomResourceDefinition" for ref in self.members)
