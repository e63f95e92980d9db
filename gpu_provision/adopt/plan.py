"""Plan what happens to each object and each running driver of the GPU Operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpu_provision.adopt import checks
from gpu_provision.adopt.discovery import (
    DRIVER_APP,
    OperatorInstall,
    is_discovery,
    is_of_driver,
    is_operator,
    is_owned,
    labels_of,
)
from gpu_provision.adopt.reference import read_table
from gpu_provision.components import labels
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.model.cluster import Manifest, ObjectRef, RenderContext, index_by_ref, ref_of
from gpu_provision.model.findings import Finding
from gpu_provision.model.plan import FieldChange
from gpu_provision.planning.applyset import PART_OF
from gpu_provision.planning.diff import differences
from gpu_provision.planning.managed_fields import with_transferred_fields
from gpu_provision.planning.states import Desired
from gpu_provision.planning.verdicts import label_changes
from gpu_provision.rollout.states import installation_digest

_PER_NODE = frozenset({"Node", "Pod"})
_NFD_GROUP = ".nfd.k8s-sigs.io"
_DRIVER = "nvidia-driver-ctr"
_VOID = ("NVIDIA_VISIBLE_DEVICES", "void")  # the container's runtime looks for a driver without it, the driver does not
# Variables about the pod's node, and the GPU Operator's own digest.
_OF_NO_EFFECT = frozenset({"NODE_NAME", "NODE_IP", "DRIVER_CONFIG_DIGEST"})
_PROBE = "nvidia-driver-startup-probe"
_TOKEN = "/var/run/secrets/kubernetes.io/"  # noqa: S105 - mount path of tokens, which come from a Secret before 1.21

# Label `app` of the operator's DaemonSets -> the component that replaces them.
OPERANDS: Mapping[str, str] = {
    DRIVER_APP: "driver",
    "nvidia-container-toolkit-daemonset": "toolkit",
    "nvidia-operator-validator": "validator",
    "nvidia-mig-manager": "mig_manager",
    "nvidia-device-plugin-daemonset": "device_plugin",
    "nvidia-device-plugin-mps-control-daemon": "mps_control_daemon",
    "gpu-feature-discovery": "gfd",
    "nvidia-dcgm": "dcgm",
    "nvidia-dcgm-exporter": "dcgm_exporter",
    "nvidia-node-status-exporter": "node_status_exporter",
}


class Disposition(StrEnum):
    """What happens to an object."""

    TAKEN = "take over"  # stays the same object, and changes its owner
    REPLACED = "replace"  # is deleted; the object that replaces it has another name or selector
    REMOVED = "remove"  # is deleted without replacement
    LEFT = "leave"  # stays unchanged, without an owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlan:
    """An object and its disposition."""

    ref: ObjectRef
    disposition: Disposition
    live: Manifest
    fields: tuple[FieldChange, ...] = ()  # changes by the first apply
    effects: tuple[str, ...] = ()  # other effects, as text


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDriver:
    """The driver pod of a node."""

    node: str
    ref: ObjectRef
    uid: str
    differences: tuple[str, ...]  # differences from the declared driver; empty if it is the same
    labels: Mapping[str, str | None]  # labels by which the new DaemonSet adopts it; None: a label to remove
    annotations: Mapping[str, str | None]  # the same for annotations
    live: Manifest

    @property
    def is_kept(self) -> bool:
        """Whether the driver keeps running."""
        return not self.differences


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLabels:
    """Labels that a node gets before the new DaemonSets select by them."""

    ref: ObjectRef
    uid: str
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """All steps of an adoption, before and after the apply that completes it."""

    cluster: str
    inventory: str
    release: str
    policies: tuple[Manifest, ...] = ()  # ClusterPolicies, deleted last: their absence marks a complete adoption
    operators: tuple[Manifest, ...] = ()  # Deployments, stopped first
    objects: tuple[ObjectPlan, ...] = ()  # all objects of the operator and of its chart
    drivers: tuple[RunningDriver, ...] = ()
    targets: tuple[str, ...] = ()  # GPU nodes of the cluster that the inventory declares
    nodes: tuple[NodeLabels, ...] = ()  # labels to set before the new DaemonSets
    discovery: str = ""  # namespace of the inventory's Node Feature Discovery; empty if the inventory has it off
    leftovers: tuple[Manifest, ...] = ()  # completed validation pods of the operator
    created: tuple[ObjectRef, ...] = ()  # objects that the apply creates
    findings: tuple[Finding, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to adopt."""
        return not self.policies

    @property
    def replaces_discovery(self) -> bool:
        """Whether the inventory's Node Feature Discovery replaces the chart's."""
        return bool(self.discovery) and any(is_discovery(item.live) for item in self.objects_with(Disposition.REMOVED))

    def objects_with(self, *fates: Disposition) -> tuple[ObjectPlan, ...]:
        """Return the objects with one of these dispositions."""
        return tuple(item for item in self.objects if item.disposition in fates)


def plan_adoption(install: OperatorInstall, context: RenderContext, desired: Desired) -> Adoption:
    """Plan the adoption of a cluster by an inventory."""
    wanted = index_by_ref(item for items in desired.values() for item in items if item["kind"] not in _PER_NODE)
    drivers = tuple(_plan_drivers(install, context, desired))
    findings = (*checks.check_cluster(install, context), *checks.check_drivers(drivers))
    return Adoption(
        cluster=install.cluster,
        inventory=context.inventory.name,
        release=" in namespace ".join(filter(None, install.release)),
        policies=install.policies,
        operators=install.operators,
        objects=tuple(_plan_objects(install, wanted, frozenset(desired))),
        drivers=drivers,
        targets=tuple(target.name for target in context.targets if target.facts),
        nodes=tuple(_plan_node_labels(install, desired)),
        discovery=context.inventory.specs.nfd.namespace if "nfd" in desired else "",
        leftovers=tuple(pod for pod in install.pods if is_owned(pod, install.policy_uids)),
        created=tuple(ref for ref in wanted if ref not in install.objects),
        findings=(*findings, *checks.check_release(install)),
    )


def _plan_objects(
    install: OperatorInstall, wanted: Mapping[ObjectRef, Manifest], components: frozenset[str]
) -> Iterator[ObjectPlan]:
    keeps_discovery = "nfd" not in components
    # One without an owner counts as well: an interrupted run may have removed it.
    others = [item for ref, item in install.objects.items() if ref not in wanted and ref not in install.chart]
    staying = [
        item for item in others if item["kind"] == "DaemonSet" and PART_OF not in labels_of(item) and _is_kept(item)
    ]
    for ref, item in {**install.owned, **install.chart}.items():
        if ref in wanted:
            yield _take_over(item, wanted[ref])
        elif ref in install.discovery and keeps_discovery:
            yield ObjectPlan(ref=ref, disposition=Disposition.LEFT, live=item)
        elif ref in install.chart:
            effects = ("stopped first, removed last",) if is_operator(item) else ()
            yield ObjectPlan(ref=ref, disposition=Disposition.REMOVED, live=item, effects=effects)
        else:
            yield _plan_operand(item, staying, components)
    if install.discovery and not keeps_discovery:
        # Every Node Feature Discovery installs these definitions; Helm never removes them.
        for ref in wanted:
            is_definition = ref.kind == "CustomResourceDefinition" and ref.name.endswith(_NFD_GROUP)
            if is_definition and ref in install.objects and PART_OF not in labels_of(install.objects[ref]):
                yield _take_over(install.objects[ref], wanted[ref])


def _take_over(live: Manifest, wanted: Manifest) -> ObjectPlan:
    """Plan an object with the name of a desired one: take it over, unless an immutable field differs."""
    ref = ref_of(live)
    if fixed := _immutable_difference(live, wanted):
        return ObjectPlan(
            ref=ref, disposition=Disposition.REPLACED, live=live, effects=(f"its {fixed} cannot be changed",)
        )
    changes = differences(_with_metadata_maps(wanted), _with_metadata_maps(with_transferred_fields(live)))
    effects: tuple[str, ...] = ()
    if live["kind"] == "DaemonSet" and any(change.path.startswith("spec.template") for change in changes):
        number = (live.get("status") or {}).get("desiredNumberScheduled", 0)
        pods = "its pod" if number == 1 else f"its {number} pods, node by node"
        effects = (f"restarts {pods}; containers that have a GPU keep it",)
    fields = tuple(change for change in changes if not _is_noise(change))
    return ObjectPlan(ref=ref, disposition=Disposition.TAKEN, live=live, fields=fields, effects=effects)


def _immutable_difference(live: Manifest, wanted: Manifest) -> str:
    match live["kind"]:
        case "DaemonSet" | "Deployment" if live["spec"].get("selector") != wanted["spec"].get("selector"):
            return "selector"
        case "RoleBinding" | "ClusterRoleBinding" if live["roleRef"] != wanted["roleRef"]:
            return "roleRef"
        case "RuntimeClass" if live["handler"] != wanted["handler"]:
            return "handler"
        case _:
            return ""


def _plan_operand(item: Manifest, staying: list[Manifest], components: frozenset[str]) -> ObjectPlan:
    """Plan an object of the operator without a desired one of the same name."""
    ref = ref_of(item)
    component = _replacement(item) if item["kind"] == "DaemonSet" else None
    if component is None:
        stays = _is_kept(item) or any(_is_used_by(item, other) for other in staying)
        return ObjectPlan(ref=ref, disposition=Disposition.LEFT if stays else Disposition.REMOVED, live=item)
    if component not in components:
        effects = (f"{component} is off in the inventory",)
        return ObjectPlan(ref=ref, disposition=Disposition.REMOVED, live=item, effects=effects)
    pods = "its pods stay; the new DaemonSet adopts them" if component == "driver" else "the new one has another name"
    return ObjectPlan(ref=ref, disposition=Disposition.REPLACED, live=item, effects=(pods,))


def _replacement(daemon_set: Manifest) -> str | None:
    """Return the component that replaces a DaemonSet of the operator; None if none does."""
    app = DRIVER_APP if is_of_driver(daemon_set) else labels_of(daemon_set).get(labels.APP, "")
    return OPERANDS.get(app)


def _is_kept(item: Manifest) -> bool:
    """Whether no component replaces an object."""
    if item["kind"] == "DaemonSet":
        return _replacement(item) is None
    return item["kind"] in {"RuntimeClass", "Namespace", "CustomResourceDefinition"}


def _is_used_by(item: Manifest, daemon_set: Manifest) -> bool:
    """Whether a DaemonSet that stays uses an object: its account with RBAC and constraints, its files, its Service."""
    template, ref = daemon_set["spec"]["template"], ref_of(item)
    pod = template["spec"]
    match ref.kind:
        case (
            "ServiceAccount"
            | "Role"
            | "RoleBinding"
            | "ClusterRole"
            | "ClusterRoleBinding"
            | "SecurityContextConstraints"
        ):
            return bool(ref.name == pod.get("serviceAccountName"))
        case "ConfigMap":
            return any((volume.get("configMap") or {}).get("name") == ref.name for volume in pod.get("volumes") or ())
        case "Service":
            selector = item["spec"].get("selector") or {}
            return bool(selector) and selector.items() <= template["metadata"]["labels"].items()
        case _:
            return labels_of(item).get(labels.APP) == labels_of(daemon_set).get(labels.APP)


def _plan_drivers(install: OperatorInstall, context: RenderContext, desired: Desired) -> Iterator[RunningDriver]:
    templates = {
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]: item["spec"]["template"]
        for item in desired.get("driver", ())
        if item["kind"] == "DaemonSet"
    }
    groups = {target.name: target.driver_group for target in context.targets}
    asked = (install.policy or {}).get("spec", {}).get("daemonsets") or {}
    for pod in install.driver_pods():
        template = templates.get(groups.get(pod["spec"].get("nodeName", ""), ""))
        if template is not None and labels.COMPONENT not in labels_of(pod):
            yield _compare_driver(pod, template, asked)


def _compare_driver(pod: Manifest, template: Manifest, asked: Mapping[str, Any]) -> RunningDriver:
    """Compare a driver pod with the desired template; ``asked`` is ``daemonsets`` of the ClusterPolicy."""

    def surplus(key: str) -> dict[str, str | None]:
        """Return the labels to remove: the ClusterPolicy sets them, and the inventory does not."""
        live, wanted = pod["metadata"].get(key) or {}, template["metadata"].get(key, {})
        return dict.fromkeys(sorted((asked.get(key) or {}).keys() & live.keys() - wanted.keys()))

    differs = tuple(_find_differences(pod, template))
    marks = dict(template["metadata"]["labels"])
    if differs:  # digests are only for a pod that equals the template
        del marks[labels.DIGEST]
    else:
        marks[labels.INSTALLATION] = installation_digest(template)
    return RunningDriver(
        node=node_of(pod),
        ref=ref_of(pod),
        uid=pod["metadata"]["uid"],
        differences=differs,
        labels=surplus("labels") | marks,
        annotations=surplus("annotations") | template["metadata"].get("annotations", {}),
        live=pod,
    )


def _find_differences(pod: Manifest, template: Manifest) -> Iterator[str]:
    live, wanted = _container(pod), _container(template)
    if live is None or wanted is None:
        yield f"no container {_DRIVER}"
        return
    if live["image"] != wanted["image"]:
        yield f"image {live['image']}, desired: {wanted['image']}"
    if _command(live) != _command(wanted):
        yield f"command {' '.join(_command(live))}, desired: {' '.join(_command(wanted))}"
    here, there = _environment(live), _environment(wanted)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            yield f"{name} is {_describe_value(here.get(name))}, desired: {_describe_value(there.get(name))}"
    for source in sorted(_mounted_sources(pod, live) ^ _mounted_sources(template, wanted)):
        yield f"{source} is mounted in only one of the two"
    containers = [{each["name"] for each in one["spec"]["containers"]} for one in (pod, template)]
    for name in sorted(containers[0] ^ containers[1]):
        yield f"container {name} runs beside only one of the two"


def _describe_value(value: Any) -> str:
    return "not set" if value is None else repr(value) if isinstance(value, str) else "set from elsewhere"


def _container(pod: Manifest) -> dict[str, Any] | None:
    return next((each for each in pod["spec"]["containers"] if each["name"] == _DRIVER), None)


def _command(container: Mapping[str, Any]) -> tuple[str, ...]:
    return (*container.get("command", ()), *container.get("args", ()))


def _environment(container: Mapping[str, Any]) -> dict[str, Any]:
    variables = {each["name"]: each.get("valueFrom", each.get("value", "")) for each in container.get("env") or ()}
    variables |= {f"envFrom {number}": each for number, each in enumerate(container.get("envFrom") or ())}
    return {name: value for name, value in variables.items() if name not in _OF_NO_EFFECT and (name, value) != _VOID}


def _mounted_sources(pod: Manifest, container: Mapping[str, Any]) -> set[str]:
    """Return the ConfigMaps and Secrets that a container mounts; paths do not matter."""
    mounts = container.get("volumeMounts") or ()
    mounted = {mount["name"] for mount in mounts if not mount["mountPath"].startswith(_TOKEN)}
    volumes = [volume for volume in pod["spec"].get("volumes") or () if volume["name"] in mounted]
    maps = {f"ConfigMap {volume['configMap']['name']}" for volume in volumes if "configMap" in volume}
    secrets = {f"Secret {volume['secret']['secretName']}" for volume in volumes if "secret" in volume}
    return (maps | secrets) - {f"ConfigMap {_PROBE}"}


def _plan_node_labels(install: OperatorInstall, desired: Desired) -> Iterator[NodeLabels]:
    """Yield missing node labels: the DaemonSet controller deletes pods on nodes that its selector lacks."""
    facts = {node.name: node for node in install.facts.nodes}
    for item in desired.get("node_labels", ()):
        node = facts.get(item["metadata"]["name"])
        if node is not None and (changes := label_changes(item, node)):
            yield NodeLabels(ref=ref_of(item), uid=node.uid, changes=changes)


_OWN_MARKS = (
    *(labels.MANAGED_BY, PART_OF, labels.COMPONENT, labels.STACK, labels.DIGEST, labels.CONFIG),
    "deprecated.daemonset.template.generation",
)


def _is_noise(change: FieldChange) -> bool:
    """Whether a change is a mark of gpu-provision, or a default of the API server."""
    if change.path.endswith(tuple(f'"{mark}"' for mark in _OWN_MARKS)):
        return True
    name, defaults = change.path.rpartition(".")[2], read_table("server_defaults.yaml")
    return change.new is None and name in defaults and (defaults[name] is None or change.old in defaults[name])


def _with_metadata_maps(item: Manifest) -> Manifest:
    """Return an object with labels and annotations, even empty ones, so that a comparison works key by key."""
    full = {**item, "metadata": {"labels": {}, "annotations": {}, **(item.get("metadata") or {})}}
    if template := (item.get("spec") or {}).get("template"):
        full["spec"] = {**item["spec"], "template": _with_metadata_maps(template)}
    return full
