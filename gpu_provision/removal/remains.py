"""What of a stack is in a cluster, as one reading found it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.model.cluster import Manifest, ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """One reading. All objects are live ones, by reference.

    Attributes:
        cluster: The cluster as people name it: its context and version.
        members: What carries the stack's membership, of every kind that the tool ever applies.
        records: The stack's own objects: its ConfigMap, validations on record, history.
        lease: Its lock; empty if there is none.
        traces: What its components made while they ran: NodeFeatures, pods of the validator, leases.
        pods: The stack's own pods.
        others: Pods that are neither the stack's nor traces of it.
        claims: ResourceClaims; None if pods have some, and they cannot be read.
        nodes: All nodes.
        stacks: Names of the other stacks of this tool in the cluster.
        strangers: Namespace or CustomResourceDefinition of ours -> what others have in it, in words.
    """

    cluster: str
    members: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    records: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    lease: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    traces: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    pods: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    others: tuple[Manifest, ...] = ()
    claims: tuple[Manifest, ...] | None = ()
    nodes: tuple[Manifest, ...] = ()
    stacks: frozenset[str] = frozenset()
    strangers: Mapping[ObjectRef, tuple[str, ...]] = field(default_factory=dict)
