"""Membership of objects in a stack: the ApplySet convention of KEP-3659, as in kubectl.

The set's parent is a ConfigMap in the operands' namespace; members have its id as a label. The parent names the kinds
of the set, so that pruning lists every kind that an earlier version of the tool applied.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping

from gpu_provision.components import labels
from gpu_provision.components.objects import digest
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef
from gpu_provision.model.inventory import Inventory

STACK, PART_OF = labels.STACK, labels.APPLYSET_PART_OF
SET_ID = "applyset.kubernetes.io/id"
_TOOLING = "applyset.kubernetes.io/tooling"
_KINDS = "applyset.kubernetes.io/contains-group-kinds"
_NAMESPACES = "applyset.kubernetes.io/additional-namespaces"

_WORKLOADS = frozenset({"DaemonSet", "Deployment"})


def applyset_id(stack: str, namespace: str) -> str:
    """Return the id of a stack's ApplySet, as KEP-3659 computes it from the parent's identity."""
    identity = f"{stack}.{namespace}.ConfigMap."
    text = base64.urlsafe_b64encode(hashlib.sha256(identity.encode()).digest()).rstrip(b"=").decode()
    return f"applyset-{text}-v1"


def member_selector(inventory: Inventory) -> str:
    """Return the label selector of the members of a stack's ApplySet."""
    return f"{PART_OF}={applyset_id(inventory.name, inventory.cluster.namespace)}"


def parent(stack: str, namespace: str, members: Iterable[ObjectRef]) -> Manifest:
    """Return the ConfigMap that is the parent of a stack's ApplySet."""
    refs = tuple(members)
    kinds = sorted({group_kind(ref.type) for ref in refs})
    namespaces = sorted({ref.namespace for ref in refs if ref.namespace not in {"", namespace}})
    annotations = {_TOOLING: "gpu-provision/v1", _KINDS: ",".join(kinds)}
    if namespaces:
        annotations[_NAMESPACES] = ",".join(namespaces)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": stack,
            "namespace": namespace,
            "labels": {SET_ID: applyset_id(stack, namespace), labels.MANAGED_BY: "gpu-provision"},
            "annotations": annotations,
        },
    }


def label_member(manifest: Manifest, *, component: str, stack: str, namespace: str) -> Manifest:
    """Return the manifest with the labels of its stack; pod templates get their digest as well."""
    if manifest["kind"] == "Node":  # a stack owns only a few of its labels
        return manifest
    marks = {labels.MANAGED_BY: "gpu-provision", labels.COMPONENT: component}
    if manifest["kind"] == "Pod":
        return _add_labels(manifest, {**marks, STACK: stack})
    marked = _add_labels(manifest, {**marks, PART_OF: applyset_id(stack, namespace)})
    if manifest["kind"] not in _WORKLOADS:
        return marked
    template = manifest["spec"]["template"]
    marks = {labels.DIGEST: digest(template), labels.COMPONENT: component, STACK: stack}
    return {**marked, "spec": {**manifest["spec"], "template": _add_labels(template, marks)}}


def _add_labels(manifest: Manifest, added: dict[str, str]) -> Manifest:
    metadata = manifest.get("metadata", {})
    return {**manifest, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **added}}}


def group_kind(kind: Kind) -> str:
    """Return a kind as KEP-3659 writes it: ``DaemonSet.apps``."""
    group = kind.api_version.rpartition("/")[0]
    return f"{kind.kind}.{group}" if group else kind.kind


def kinds_of(parent_object: Manifest) -> frozenset[str]:
    """Return the kinds that a live parent names, as ``DaemonSet.apps``."""
    text = parent_object.get("metadata", {}).get("annotations", {}).get(_KINDS, "")
    return frozenset(filter(None, text.split(",")))


def component_of(manifest: Manifest) -> str:
    """Return the component that an object or pod belongs to, or an empty string."""
    return str(manifest.get("metadata", {}).get("labels", {}).get(labels.COMPONENT, ""))


def digest_of(manifest: Manifest) -> str:
    """Return the digest label of an object or pod, or an empty string."""
    return str(manifest.get("metadata", {}).get("labels", {}).get(labels.DIGEST, ""))


def matches_node(daemonset: Manifest, node_labels: Mapping[str, str | None]) -> bool:
    """Whether a DaemonSet's nodeSelector matches a node's labels."""
    selector = daemonset["spec"]["template"]["spec"].get("nodeSelector", {})
    return all(node_labels.get(key) == value for key, value in selector.items())


def is_owned_by(pod: Manifest, daemonset: Manifest) -> bool:
    """Whether a pod is owned by a DaemonSet of this name."""
    owners = pod["metadata"].get("ownerReferences", ())
    return any(owner["kind"] == "DaemonSet" and owner["name"] == daemonset["metadata"]["name"] for owner in owners)
