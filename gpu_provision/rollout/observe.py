"""Build a snapshot of the fleet from live objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpu_provision.components import labels, validator
from gpu_provision.components.gpu_resources import missing_device, read_devices
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.diagnostics.pods import phase
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.label_selectors import Selector, selector_of
from gpu_provision.model.plan import NOT_IN_INVENTORY
from gpu_provision.rollout import snapshot
from gpu_provision.rollout.gpu_use import claims_of, gpu_use_of
from gpu_provision.rollout.snapshot import FleetNode, GpuUse, Pod, Snapshot, StackPresence, ValidationResult
from gpu_provision.rollout.states import installation_digest, writer_of

_MIRROR = "kubernetes.io/config.mirror"  # annotation of a static pod, which the kubelet restarts
_CORDON = "node.kubernetes.io/unschedulable"  # taint of a cordoned node

PodBudget = tuple[str, Selector, snapshot.DisruptionBudget]
"""Namespace, selector of its pods, and the allowed disruptions."""


def pod_of(
    manifest: Manifest,
    *,
    budgets: Iterable[PodBudget] = (),
    claims: Collection[tuple[str, str]] | None = (),
    refusals: Mapping[str, str] | None = None,
) -> Pod:
    """Return a pod of a snapshot; see `budgets_of` and `claims_of`.

    ``refusals``: uid -> the API server's last answer to the pod's eviction.
    """
    metadata = manifest["metadata"]
    namespace, own = metadata.get("namespace", ""), metadata.get("labels") or {}
    owner = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), None)
    return Pod(
        namespace=namespace,
        name=metadata["name"],
        uid=metadata["uid"],
        owner=f"{owner['kind']} {owner['name']}" if owner else "",
        labels=own,
        use=gpu_use_of(manifest, claims),
        is_daemon=_MIRROR in (metadata.get("annotations") or {}) or bool(owner and owner["kind"] == "DaemonSet"),
        is_finished=phase(manifest) in {"Succeeded", "Failed"},
        has_empty_dir=any("emptyDir" in volume for volume in manifest["spec"].get("volumes") or ()),
        tolerates_cordons=any(map(_tolerates_cordons, manifest["spec"].get("tolerations") or ())),
        is_terminating=bool(metadata.get("deletionTimestamp")),
        refusal=(refusals or {}).get(metadata["uid"], ""),
        budgets=tuple(budget for where, covers, budget in budgets if where == namespace and covers(own)),
    )


def _tolerates_cordons(toleration: Mapping[str, Any]) -> bool:
    """Whether a toleration matches the taint of a cordon, which has no value."""
    exists = toleration.get("operator") == "Exists"
    keys = {_CORDON, ""} if exists else {_CORDON}
    matches = exists or not toleration.get("value")
    return toleration.get("key", "") in keys and matches and toleration.get("effect", "") in {"", "NoSchedule"}


def is_stack_pod(manifest: Manifest) -> bool:
    """Whether a pod belongs to the stack: the driver manager pauses such pods, or they end in seconds."""
    return labels.STACK in (manifest["metadata"].get("labels") or {}) or validator.runs_vector_add(manifest)


def budgets_of(manifests: Iterable[Manifest]) -> tuple[PodBudget, ...]:
    """Return PodDisruptionBudgets (policy/v1) for `pod_of`."""
    budgets = list[PodBudget]()
    for each in manifests:
        metadata, allowed = each["metadata"], (each.get("status") or {}).get("disruptionsAllowed", 0)
        budget = snapshot.DisruptionBudget(metadata["name"], allowed)
        budgets.append((metadata.get("namespace", ""), selector_of(each["spec"].get("selector")), budget))
    return tuple(budgets)


_MANAGER = "k8s-driver-manager"
COMPONENTS_READ = frozenset({"driver", "device_plugin", "mig_manager"})
"""Components of the stack whose pods a snapshot needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredDriver:
    """The desired driver of one node, from the inventory."""

    domain: str  # see `budgets.domain_of`
    position: int  # its place in the inventory
    template: Manifest | None  # of its driver pod; None for a node without a driver of the stack
    version: str = ""  # the driver's version
    mig: str = ""  # the MIG configuration that it requests; empty for none
    mig_manager: Manifest | None = None  # template of the MIG manager's pod
    devices: Mapping[str, int] | None = None  # what the node offers with it; empty if unknown
    has_device_plugin: bool = False  # whether the stack's device plugin offers the GPUs, unless a label prevents it
    left_out: str = ""  # see `FleetNode`
    is_template_observed: bool = True  # the same
    stack: StackPresence = StackPresence.STAYS  # the same
    leaves_because: str = NOT_IN_INVENTORY  # the same


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObjects:
    """Live objects, with the answers to evictions and the results of validations."""

    nodes: Iterable[Manifest]  # nodes of the cluster; undeclared ones are ignored
    pods: Iterable[Manifest]  # pods of all namespaces
    budgets: Sequence[Manifest] = ()  # PodDisruptionBudgets
    claims: Sequence[Manifest] | None = ()  # ResourceClaims; None if pods have claims that could not be read
    refusals: Mapping[str, str] = field(default_factory=dict)  # uid of a pod -> the last answer to its eviction
    # node -> result for its current driver
    validation_results: Mapping[str, ValidationResult] = field(default_factory=dict)


_Each = Callable[[Mapping[str, object], Callable[[str], FleetNode]], Mapping[str, FleetNode]]


def observe(
    declared: Mapping[str, DesiredDriver],
    seen: ClusterObjects,
    *,
    now: float,
    previous: str = "",
    each: _Each | None = None,
) -> Snapshot:
    """Return a snapshot of the declared nodes that exist, in the order of the inventory.

    ``each``: maps a reader over nodes, with all inputs of each node, as `Memo.of` does.
    """
    budgets, claims, answers = budgets_of(seen.budgets), claims_of(seen.claims), seen.refusals
    nodes, pods = {node["metadata"]["name"]: node for node in seen.nodes}, dict[str, list[Manifest]]()
    for pod in seen.pods:
        pods.setdefault(pod_view.node_of(pod), []).append(pod)

    def inputs_of(name: str) -> tuple[object, ...]:
        there = pods.get(name, ())
        refused = [answers.get(pod["metadata"]["uid"]) for pod in there] if answers else ()
        return nodes[name], declared[name], there, refused, seen.validation_results.get(name), seen.budgets, seen.claims

    def read(name: str) -> FleetNode:
        of = partial(pod_of, budgets=budgets, claims=claims, refusals=answers)
        return _fleet_node(nodes[name], declared[name], pods.get(name, ()), of, seen.validation_results.get(name))

    order = sorted((name for name in declared if name in nodes), key=lambda name: declared[name].position)
    fleet = each({name: inputs_of(name) for name in order}, read).values() if each else map(read, order)
    target = fleet_digest(declared)
    return Snapshot(now=now, target=target, previous=previous, nodes=tuple(fleet), is_rolling_back=previous == target)


def fleet_digest(declared: Mapping[str, DesiredDriver]) -> str:
    """Return the digest of the desired drivers of all nodes."""
    templates = {id(desired.template): desired.template for desired in declared.values() if desired.template}
    geometries = {desired.mig for desired in declared.values() if desired.mig}
    text = "\n".join((*sorted(set(map(installation_digest, templates.values()))), *sorted(geometries)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fleet_node(
    node: Manifest,
    desired: DesiredDriver,
    pods: Iterable[Manifest],
    read: Callable[[Manifest], Pod],
    proof: ValidationResult | None,
) -> FleetNode:
    there = sorted(pods, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))
    own, others = tuple(filter(is_stack_pod, there)), tuple(read(pod) for pod in there if not is_stack_pod(pod))
    metadata, spec = node["metadata"], node.get("spec") or {}
    conditions = (node.get("status") or {}).get("conditions") or ()
    digest = installation_digest(desired.template) if desired.template else snapshot.NO_DRIVER.digest
    return FleetNode(
        name=metadata["name"],
        domain=desired.domain,
        desired=snapshot.DesiredContent(digest, desired.version, desired.mig),
        position=desired.position,
        revision=metadata["resourceVersion"],
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        is_cordoned=bool(spec.get("unschedulable")),
        cordoned_by=writer_of(metadata)[0],
        is_ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        driver=_driver_pod(own, others),
        validation_result=proof,
        pods=others,
        mig_manager=_ready_mig_manager(own, desired.mig_manager) if desired.mig_manager else "",
        offers_gpus=not desired.has_device_plugin or _offers_gpus(node, own, desired.devices or {}),
        exclusion_reason=desired.left_out,
        is_template_observed=desired.is_template_observed,
        stack=desired.stack,
        leaves_because=desired.leaves_because,
    )


def _offers_gpus(node: Manifest, own: Iterable[Manifest], devices: Mapping[str, int]) -> bool:
    """Whether the device plugin is ready on a node and the kubelet offers these devices, or any if none are known."""
    deploy = (node["metadata"].get("labels") or {}).get(labels.deploy_label("device-plugin"), "")
    if deploy != "true" and not deploy.startswith(labels.PAUSED):
        return True
    plugin = next(iter(_component_pods("device_plugin", own)), None)
    if plugin is None or plugin["metadata"].get("deletionTimestamp") or not pod_view.is_ready(plugin):
        return False
    offered = (node.get("status") or {}).get("allocatable") or {}
    if devices:
        return not missing_device(read_devices(offered), devices)
    return any(name.startswith("nvidia.com/") and amount != "0" for name, amount in offered.items())


def _ready_mig_manager(own: Iterable[Manifest], template: Manifest) -> str:
    content = template["metadata"]["labels"].get(labels.DIGEST)
    pods = (pod["metadata"] for pod in _component_pods("mig_manager", own) if pod_view.is_ready(pod))
    current = (each for each in pods if each["labels"].get(labels.DIGEST) == content)
    return next((str(each["uid"]) for each in current if not each.get("deletionTimestamp")), "")


def _component_pods(component: str, pods: Iterable[Manifest]) -> list[Manifest]:
    """Return the pods of a component, terminating ones last."""
    own = (pod for pod in pods if pod["metadata"]["labels"].get(labels.COMPONENT) == component)
    return sorted(own, key=lambda pod: bool(pod["metadata"].get("deletionTimestamp")))


def _driver_pod(own: Iterable[Manifest], others: Iterable[Pod]) -> snapshot.DriverPod | None:
    driver = next(iter(_component_pods("driver", own)), None)
    if driver is None:
        return None
    metadata, status = driver["metadata"], driver.get("status") or {}
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    unready = [each for each in containers if not each.get("ready")]
    # The driver manager exits and is restarted as long as pods on the node use GPUs.
    manager: Manifest = next((each for each in unready if each["name"] == _MANAGER), {})
    gave_up = manager.get("restartCount", 0) > 0 or (manager.get("state") or {}).get("terminated", {}).get("exitCode")
    return snapshot.DriverPod(
        uid=metadata["uid"],
        digest=installation_digest(driver),
        is_ready=pod_view.is_ready(driver),
        is_terminating=bool(metadata.get("deletionTimestamp")),
        restarts=max((each.get("restartCount", 0) for each in unready), default=0),
        has_owner=bool(metadata.get("ownerReferences")),
        is_held_up=bool(gave_up) and any(pod.use is not GpuUse.NONE and not pod.is_finished for pod in others),
    )
