"""Objects as a cluster shows them -> the snapshot that the machine looks at. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.components import labels
from gpu_provision.diagnose import pods as pod_view
from gpu_provision.model.cluster import Manifest
from gpu_provision.rollout.cordons import writer_of
from gpu_provision.rollout.installation import installation
from gpu_provision.rollout.snapshot import NOTHING, DriverPod, Node, Pod, Proof, Snapshot, Stack, Use, Wanted
from gpu_provision.rollout.workloads import PodBudget, budgets_of, claims_of, is_ours, pod_of

_MANAGER = "k8s-driver-manager"
_DRIVER = "driver"
_DEVICE_PLUGIN = "device_plugin"
_DEVICE_PLUGIN_OPERAND = labels.deploy("device-plugin")
_RESOURCES = "nvidia.com/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the inventory says of one node.

    Attributes:
        domain: See `rollout.policy.domain_of`.
        position: Its place in the inventory.
        template: Pod template of its driver DaemonSet; None for a node that is to have no driver of the stack.
        version: The driver's version.
        has_device_plugin: Whether the stack's device plugin is to offer its GPUs, unless a label keeps it off.
        left_out: See `rollout.snapshot.Node`.
        is_template_observed: The same.
        stack: The same.
    """

    domain: str
    position: int
    template: Manifest | None
    version: str = ""
    has_device_plugin: bool = False
    left_out: str = ""
    is_template_observed: bool = True
    stack: Stack = Stack.STAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Live objects.

    Attributes:
        nodes: Nodes of the cluster; those that are not declared are left alone.
        pods: Pods of all namespaces.
        budgets: PodDisruptionBudgets.
        claims: ResourceClaims; None if pods have some, and nobody could look at them.
        refusals: Uid of a pod -> what the API server last answered to its eviction.
        proofs: Node -> what validation says of the driver that is there now.
    """

    nodes: Iterable[Manifest]
    pods: Iterable[Manifest]
    budgets: Iterable[Manifest] = ()
    claims: Iterable[Manifest] | None = ()
    refusals: Mapping[str, str] = field(default_factory=dict)
    proofs: Mapping[str, Proof] = field(default_factory=dict)


def observe(declared: Mapping[str, Declared], seen: Seen, *, now: float, previous: str = "") -> Snapshot:
    """Return the fleet as it is: the nodes that are declared and exist, in the order of the inventory."""
    budgets, claims = budgets_of(seen.budgets), claims_of(seen.claims)
    pods = _by_node(seen.pods)
    known = {node["metadata"]["name"]: node for node in seen.nodes}
    target = fleet_digest(declared)
    nodes = tuple(
        node_from(known[name], wish, pods.get(name, ()), budgets, claims, seen.refusals, seen.proofs)
        for name, wish in sorted(declared.items(), key=lambda item: item[1].position)
        if name in known
    )
    return Snapshot(now=now, target=target, previous=previous, nodes=nodes, is_rolling_back=previous == target)


def fleet_digest(declared: Mapping[str, Declared]) -> str:
    """Return a name for the wanted drivers of all nodes together."""
    text = "\n".join(sorted({installation(wish.template) for wish in declared.values() if wish.template}))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _by_node(pods: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    found: dict[str, list[Manifest]] = {}
    for pod in pods:
        found.setdefault(pod_view.node_of(pod), []).append(pod)
    return found


def node_from(  # noqa: PLR0913, PLR0917 - all that a node is read off
    node: Manifest,
    wish: Declared,
    pods: Iterable[Manifest],
    budgets: Iterable[PodBudget],
    claims: Collection[tuple[str, str]] | None,
    refusals: Mapping[str, str],
    proofs: Mapping[str, Proof],
) -> Node:
    """Return one node as rollouts see it; ``pods`` are those on it, ours and those of others, in any order."""
    there = sorted(pods, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))
    others = (pod_of(pod, budgets=budgets, claims=claims, refusals=refusals) for pod in there if not is_ours(pod))
    proof = proofs.get(node["metadata"]["name"])
    return _node(node, wish, tuple(filter(is_ours, there)), tuple(others), proof)


def _node(
    node: Manifest, wish: Declared, ours: Sequence[Manifest], others: tuple[Pod, ...], proof: Proof | None
) -> Node:
    metadata, spec = node["metadata"], node.get("spec") or {}
    return Node(
        name=metadata["name"],
        domain=wish.domain,
        wanted=Wanted(installation(wish.template), wish.version) if wish.template else NOTHING,
        position=wish.position,
        revision=metadata["resourceVersion"],
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        is_cordoned=bool(spec.get("unschedulable")),
        cordoned_by=writer_of(metadata)[0],
        is_ready=_is_ready(node),
        driver=_driver(ours, others),
        proof=proof,
        pods=others,
        offers_gpus=not wish.has_device_plugin or _offers_gpus(node, ours),
        left_out=wish.left_out,
        is_template_observed=wish.is_template_observed,
        stack=wish.stack,
    )


def _is_ready(node: Manifest) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _offers_gpus(node: Manifest, ours: Iterable[Manifest]) -> bool:
    """Whether the device plugin is ready on a node and the kubelet offers what it announced, whatever its name."""
    said = (node["metadata"].get("labels") or {}).get(_DEVICE_PLUGIN_OPERAND, "")
    if said != "true" and not said.startswith(labels.PAUSED):
        return True
    plugin = next(iter(_of(_DEVICE_PLUGIN, ours)), None)
    if plugin is None or plugin["metadata"].get("deletionTimestamp") or not pod_view.is_ready(plugin):
        return False
    offered = (node.get("status") or {}).get("allocatable") or {}
    return any(name.startswith(_RESOURCES) and amount != "0" for name, amount in offered.items())


def _of(component: str, pods: Iterable[Manifest]) -> list[Manifest]:
    """Return the pods of a component, those that stay before those that go."""
    found = (pod for pod in pods if pod["metadata"]["labels"].get(labels.COMPONENT) == component)
    return sorted(found, key=lambda pod: bool(pod["metadata"].get("deletionTimestamp")))


def _driver(own: Iterable[Manifest], others: Iterable[Pod]) -> DriverPod | None:
    found = next(iter(_of(_DRIVER, own)), None)
    if found is None:
        return None
    metadata = found["metadata"]
    return DriverPod(
        uid=metadata["uid"],
        digest=installation(found),
        is_ready=pod_view.is_ready(found),
        is_terminating=bool(metadata.get("deletionTimestamp")),
        restarts=max((status.get("restartCount", 0) for status in _unready(found)), default=0),
        has_owner=bool(metadata.get("ownerReferences")),
        is_held_up=_is_held_up(found, others),
    )


def _unready(pod: Manifest) -> list[Mapping[str, Any]]:
    status = pod.get("status") or {}
    found = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return [each for each in found if not each.get("ready")]


def _is_held_up(driver: Manifest, others: Iterable[Pod]) -> bool:
    """Whether the driver manager has given up at least once while pods on the node use GPUs."""
    manager = next((each for each in _unready(driver) if each["name"] == _MANAGER), {})
    gave_up = manager.get("restartCount", 0) > 0 or (manager.get("state") or {}).get("terminated", {}).get("exitCode")
    return bool(gave_up) and any(pod.use is not Use.NONE and not pod.is_over for pod in others)
