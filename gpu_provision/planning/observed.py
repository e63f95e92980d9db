"""What planning looks at: one consistent reading of the cluster, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef
from gpu_provision.model.progress import LockHolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedState:
    """One reading of a cluster.

    Attributes:
        cluster: The cluster as people name it: its context.
        members: Live objects that carry the stack's membership.
        names: (kind, namespace) -> the names of all objects there, of the kinds that were listed whole.
        pods: Pods of the stack's components; validation pods included.
        passed: Validations on record: (component, node) -> the verdict, see `gpu_provision.planning.validation`.
        void: Uids of pods whose vectorAdd does not count, since it is to run again.
        lock_version: Version of the lock's object; it changes whenever a run takes, renews or gives it back.
    """

    cluster: str
    facts: ClusterFacts
    members: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    names: Mapping[tuple[Kind, str], frozenset[str]] = field(default_factory=dict)
    pods: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    passed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    void: frozenset[str] = frozenset()
    lock: LockHolder | None = None
    lock_version: str = ""

    def lacks(self, ref: ObjectRef) -> bool:
        """Whether it is known that there is no such object."""
        if ref in self.members:  # a controller's reading is older than what it has created since
            return False
        if ref.kind == "Namespace":
            return ref.name not in self.namespaces
        place = ref.type, ref.namespace
        has_place = not ref.namespace or ref.namespace in self.namespaces
        return (place in self.names and ref.name not in self.names[place]) or not has_place

    @property
    def is_installed(self) -> bool:
        """Whether the cluster has anything of the stack besides definitions, which a removal leaves."""
        return any(ref.kind != "CustomResourceDefinition" for ref in self.members)


@dataclass(frozen=True, slots=True)
class NodeObjects:
    """What a component has on nodes: DaemonSets, and by node name what is about that node alone."""

    daemonsets: tuple[Manifest, ...]
    single: Mapping[str, Manifest]
