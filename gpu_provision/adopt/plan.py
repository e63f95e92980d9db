"""What becomes of each object of the GPU Operator when an inventory takes its cluster over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpu_provision.adopt import checks
from gpu_provision.adopt.discovery import (
    DRIVER_APP,
    Found,
    is_discovery,
    is_operator,
)
from gpu_provision.adopt.drivers import Driver, driver
from gpu_provision.adopt.ownership import taken
from gpu_provision.components import labels
from gpu_provision.model.cluster import Context, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding
from gpu_provision.model.plan import FieldChange
from gpu_provision.planning.applyset import PART_OF
from gpu_provision.planning.diff import differences
from gpu_provision.planning.node_patches import label_changes
from gpu_provision.planning.states import Desired

_PER_NODE = frozenset({"Node", "Pod"})
_NFD_GROUP = ".nfd.k8s-sigs.io"

# Label `app` of the operator's DaemonSets that do what a component of ours does.
OPERANDS: Mapping[str, str] = {
    DRIVER_APP: "driver",
    "nvidia-container-toolkit-daemonset": "toolkit",
    "nvidia-operator-validator": "validator",
    "nvidia-device-plugin-daemonset": "device_plugin",
    "gpu-feature-discovery": "gfd",
    "nvidia-dcgm": "dcgm",
    "nvidia-dcgm-exporter": "dcgm_exporter",
}


class Fate(StrEnum):
    """What becomes of an object."""

    TAKEN = "take over"  # stays the same object, and becomes ours
    REPLACED = "replace"  # goes, since ours that does its work has another name or selector
    REMOVED = "remove"  # goes: it does nothing any more
    LEFT = "leave"  # stays as it is, and belongs to nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """An object and what becomes of it.

    Attributes:
        fields: What the first apply changes in it.
        effects: What else happens, in words.
    """

    ref: ObjectRef
    fate: Fate
    live: Manifest
    fields: tuple[FieldChange, ...] = ()
    effects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLabels:
    """Labels that a node gets before anything of ours selects it by them."""

    ref: ObjectRef
    uid: str
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """Everything that an adoption does, before the apply that completes it, and after.

    Attributes:
        policies: ClusterPolicies, which go last: while one is there, the adoption is not over.
        operators: Deployments to be stopped before anything else.
        objects: Everything of the operator and of its chart.
        drivers: The driver pods.
        targets: Nodes with a GPU that the cluster has and the inventory claims.
        nodes: Labels that come before our DaemonSets.
        discovery: Namespace of the inventory's Node Feature Discovery; empty if the inventory has it off.
        leftovers: Pods of the operator's own validations, which are over.
        created: Objects that the apply makes.
    """

    cluster: str
    inventory: str
    release: str
    policies: tuple[Manifest, ...] = ()
    operators: tuple[Manifest, ...] = ()
    objects: tuple[Handled, ...] = ()
    drivers: tuple[Driver, ...] = ()
    targets: tuple[str, ...] = ()
    nodes: tuple[NodeLabels, ...] = ()
    discovery: str = ""
    leftovers: tuple[Manifest, ...] = ()
    created: tuple[ObjectRef, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to take over, or nothing any more."""
        return not self.policies

    @property
    def replaces_discovery(self) -> bool:
        """Whether the chart's Node Feature Discovery goes, and the inventory's takes its place."""
        return bool(self.discovery) and any(is_discovery(item.live) for item in self.of(Fate.REMOVED))

    def of(self, *fates: Fate) -> tuple[Handled, ...]:
        """Return the objects that these things become of."""
        return tuple(item for item in self.objects if item.fate in fates)


def adoption(found: Found, context: Context, desired: Desired) -> Adoption:
    """Return what an inventory's adoption of a cluster does."""
    wanted = {ref_of(item): item for items in desired.values() for item in items if item["kind"] not in _PER_NODE}
    objects = tuple(_handled(found, wanted, _components(desired)))
    drivers = tuple(_drivers(found, context, desired))
    return Adoption(
        cluster=found.cluster,
        inventory=context.inventory.name,
        release=" in namespace ".join(filter(None, found.release)),
        policies=found.policies,
        operators=found.operators,
        objects=objects,
        drivers=drivers,
        targets=tuple(target.name for target in context.targets if target.facts),
        nodes=tuple(_nodes(found, desired)),
        discovery=context.inventory.specs.nfd.namespace if "nfd" in desired else "",
        leftovers=tuple(pod for pod in found.pods if found.is_owned(pod)),
        created=tuple(ref for ref in wanted if ref not in found.objects),
        findings=(*checks.of_cluster(found, context), *checks.of_drivers(drivers), *checks.of_release(found)),
    )


def _components(desired: Desired) -> frozenset[str]:
    return frozenset(desired)


def _handled(found: Found, wanted: Mapping[ObjectRef, Manifest], components: frozenset[str]) -> Iterator[Handled]:
    keeps_discovery = "nfd" not in components
    theirs = {**found.owned, **found.chart}
    others = [item for ref, item in found.objects.items() if ref not in wanted and ref not in found.chart]
    staying = [item for item in others if item["kind"] == "DaemonSet" and PART_OF not in _labels(item) and _stays(item)]
    for ref, item in theirs.items():
        if ref in wanted:
            yield _ours(item, wanted[ref])
        elif ref in found.discovery and keeps_discovery:
            yield Handled(ref=ref, fate=Fate.LEFT, live=item)
        elif ref in found.chart:
            yield Handled(ref=ref, fate=Fate.REMOVED, live=item, effects=_of_chart(item))
        else:
            yield _operators_own(item, staying, components)
    if found.discovery and not keeps_discovery:
        yield from (_ours(found.objects[ref], wanted[ref]) for ref in wanted if _is_shared_kind(ref, found))


def _is_shared_kind(ref: ObjectRef, found: Found) -> bool:
    """Whether this is a kind that every Node Feature Discovery brings along; Helm never removes those."""
    is_kind = ref.kind == "CustomResourceDefinition" and ref.name.endswith(_NFD_GROUP)
    return is_kind and ref in found.objects and PART_OF not in _labels(found.objects[ref])


def _of_chart(item: Manifest) -> tuple[str, ...]:
    return ("stopped first, removed last",) if is_operator(item) else ()


def _ours(live: Manifest, wanted: Manifest) -> Handled:
    """An object under a name that we want: the same object, unless something differs that nobody can change."""
    ref = ref_of(live)
    if fixed := _cannot_change(live, wanted):
        return Handled(ref=ref, fate=Fate.REPLACED, live=live, effects=(f"its {fixed} cannot be changed",))
    changes = differences(whole(wanted), whole(taken(live)))
    fields = tuple(change for change in changes if not is_noise(change))
    return Handled(ref=ref, fate=Fate.TAKEN, live=live, fields=fields, effects=_restarts(live, changes))


def _cannot_change(live: Manifest, wanted: Manifest) -> str:
    match live["kind"]:
        case "DaemonSet" | "Deployment" if live["spec"].get("selector") != wanted["spec"].get("selector"):
            return "selector"
        case "RoleBinding" | "ClusterRoleBinding" if live["roleRef"] != wanted["roleRef"]:
            return "roleRef"
        case "RuntimeClass" if live["handler"] != wanted["handler"]:
            return "handler"
        case _:
            return ""


def _restarts(live: Manifest, fields: tuple[FieldChange, ...]) -> tuple[str, ...]:
    if live["kind"] != "DaemonSet" or not any(change.path.startswith("spec.template") for change in fields):
        return ()
    number = (live.get("status") or {}).get("desiredNumberScheduled", 0)
    pods = "its pod" if number == 1 else f"its {number} pods, node by node"
    return (f"restarts {pods}; containers that have a GPU keep it",)


def _operators_own(item: Manifest, staying: list[Manifest], components: frozenset[str]) -> Handled:
    """An object of the operator for which we have none of the same name."""
    ref = ref_of(item)
    if item["kind"] == "DaemonSet" and (component := OPERANDS.get(_labels(item).get(labels.APP, ""))):
        if component not in components:
            return Handled(ref=ref, fate=Fate.REMOVED, live=item, effects=(f"{component} is off in the inventory",))
        pods = "its pods stay, and go over to ours" if component == "driver" else "ours has another name"
        return Handled(ref=ref, fate=Fate.REPLACED, live=item, effects=(pods,))
    stays = _stays(item) or any(_serves(item, other) for other in staying)
    return Handled(ref=ref, fate=Fate.LEFT if stays else Fate.REMOVED, live=item)


def _stays(item: Manifest) -> bool:
    """Whether an object does something of its own that no component of ours does."""
    if item["kind"] == "DaemonSet":
        return _labels(item).get(labels.APP, "") not in OPERANDS
    return item["kind"] in {"RuntimeClass", "Namespace", "CustomResourceDefinition"}


def _serves(item: Manifest, other: Manifest) -> bool:
    """Whether a DaemonSet that stays makes use of an object: its account and rights, its files, its Service.

    One that is nobody's any more counts as well: somebody may have been killed between the two.
    """
    template, ref = other["spec"]["template"], ref_of(item)
    pod = template["spec"]
    match ref.kind:
        case "ServiceAccount" | "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding":
            return bool(ref.name == pod.get("serviceAccountName"))
        case "ConfigMap":
            return any((volume.get("configMap") or {}).get("name") == ref.name for volume in pod.get("volumes") or ())
        case "Service":
            selector = item["spec"].get("selector") or {}
            return bool(selector) and selector.items() <= template["metadata"]["labels"].items()
        case _:
            return _labels(item).get(labels.APP) == _labels(other).get(labels.APP)


def _labels(item: Manifest) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def _drivers(found: Found, context: Context, desired: Desired) -> Iterator[Driver]:
    templates = {
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]: item["spec"]["template"]
        for item in desired.get("driver", ())
        if item["kind"] == "DaemonSet"
    }
    groups = {target.name: target.driver_group for target in context.targets}
    asked = (found.policy or {}).get("spec", {}).get("daemonsets") or {}
    for pod in found.driver_pods():
        template = templates.get(groups.get(pod["spec"].get("nodeName", ""), ""))
        if template is not None and labels.COMPONENT not in _labels(pod):
            yield driver(pod, template, asked)


def _nodes(found: Found, desired: Desired) -> Iterator[NodeLabels]:
    """Yield labels that are lacking: a DaemonSet of ours takes pods off nodes that it does not select."""
    facts = {node.name: node for node in found.facts.nodes}
    for item in desired.get("node_labels", ()):
        node = facts.get(item["metadata"]["name"])
        if node is not None and (changes := label_changes(item, node)):
            yield NodeLabels(ref=ref_of(item), uid=node.uid, changes=changes)


_OUR_MARKS = (
    labels.MANAGED_BY,
    PART_OF,
    labels.COMPONENT,
    labels.STACK,
    labels.DIGEST,
    labels.CONFIG,
    "deprecated.daemonset.template.generation",
)

# Values that the API server fills in: they belong to whoever created the object, and come back when nobody wants them.
_FILLED_IN: Mapping[str, tuple[Any, ...]] = {
    "apiVersion": ("v1",),
    "conversion": ({"strategy": "None"},),
    "defaultMode": (0o644,),
    "dnsPolicy": ("ClusterFirst",),
    "failureThreshold": (3,),
    "internalTrafficPolicy": ("Cluster",),
    "ipFamilyPolicy": ("SingleStack",),
    "maxSurge": (0,),
    "periodSeconds": (10,),
    "progressDeadlineSeconds": (600,),
    "protocol": ("TCP",),
    "resources": ({},),
    "restartPolicy": ("Always",),
    "revisionHistoryLimit": (10,),
    "schedulerName": ("default-scheduler",),
    "scheme": ("HTTP",),
    "securityContext": ({},),
    "sessionAffinity": ("None",),
    "successThreshold": (1,),
    "terminationGracePeriodSeconds": (30,),
    "terminationMessagePath": ("/dev/termination-log",),
    "terminationMessagePolicy": ("File",),
    "timeoutSeconds": (1,),
    "type": ("", "ClusterIP"),
}
_ALLOTTED = frozenset({"clusterIP", "clusterIPs", "ipFamilies", "serviceAccount"})  # whatever their values


def is_noise(change: FieldChange) -> bool:
    """Whether a field is a mark of ours, or a value of the server's that comes back."""
    if change.path.endswith(tuple(f'"{mark}"' for mark in _OUR_MARKS)):
        return True
    name = change.path.rpartition(".")[2]
    return change.new is None and (name in _ALLOTTED or change.old in _FILLED_IN.get(name, ()))


def whole(item: Manifest) -> Manifest:
    """Return an object that has labels and annotations, if only empty ones, so that each key is told by itself."""
    template = (item.get("spec") or {}).get("template")
    if template is None:
        return {**item, "metadata": _whole(item["metadata"])}
    full = {**template, "metadata": _whole(template.get("metadata") or {})}
    return {**item, "metadata": _whole(item["metadata"]), "spec": {**item["spec"], "template": full}}


def _whole(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"labels": {}, "annotations": {}, **metadata}
