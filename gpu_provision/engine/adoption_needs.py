"""The rights that an adoption needs, from the inventory alone: what the operator has made is not known before."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.adoption.found import CLUSTER_POLICY, NODE_FEATURE, NVIDIA_DRIVER, REVISION
from gpu_provision.cluster.observe import MEMBER_KINDS, POD
from gpu_provision.cluster.paths import KINDS
from gpu_provision.engine import needs
from gpu_provision.model.access import Permission
from gpu_provision.model.cluster import Kind
from gpu_provision.model.inventory import Inventory

_OF_CLUSTER = frozenset({"ClusterRole", "ClusterRoleBinding", "RuntimeClass"})
_BY_NAME = frozenset({"CustomResourceDefinition", "Namespace"})  # an apply has what an adoption needs of these
_CHANGED = ("get", "patch", "delete")


def everything(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs to take a cluster over: all that an apply needs, and `beyond` it."""
    return needs.everything(inventory) | frozenset(beyond(inventory))


def beyond(inventory: Inventory) -> Iterator[Permission]:
    """Yield what an adoption needs besides: objects of others, of every kind that a stack has, change hands or go.

    They are not named, for the chart's release has names in them. In the namespace of the operands, which is that of
    the chart, and of what is in no namespace.
    """
    home = inventory.cluster.namespace
    yield from _of(CLUSTER_POLICY, "list", *_CHANGED)
    yield from _of(NVIDIA_DRIVER, "list")
    yield from (one for name in ("DaemonSet", "Deployment") for one in _of(Kind("apps/v1", name), "list"))
    yield from _of(NODE_FEATURE, "list", "watch", space=inventory.specs.nfd.namespace)
    yield from _of(POD, "patch", "delete", space=home)
    yield from _of(REVISION, "list", "delete", space=home)
    for kind in sorted(each for each in MEMBER_KINDS if each.kind not in _BY_NAME):
        yield from _of(kind, *_CHANGED, space="" if kind.kind in _OF_CLUSTER else home)


def _of(kind: Kind, *verbs: str, space: str = "") -> Iterator[Permission]:
    group = kind.api_version.rpartition("/")[0]
    yield from (Permission(verb, group, KINDS[kind], space) for verb in verbs)
