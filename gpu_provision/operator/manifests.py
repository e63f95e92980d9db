"""Manifests of the operator: definition, namespace, RBAC, controller Deployment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.components import prerequisites
from gpu_provision.components.monitoring import service_monitor
from gpu_provision.components.objects import compact, is_at_least, manifest, service_account
from gpu_provision.kube.client import KINDS
from gpu_provision.kube.observe import member_kinds, named_secrets
from gpu_provision.model.cluster import Manifest, Permission
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.monitoring_specs import ServiceMonitorSpec
from gpu_provision.model.openshift_specs import KUBERNETES, OPENSHIFT
from gpu_provision.operator import crd
from gpu_provision.operator.crd import LABELS, definition
from gpu_provision.operator.stack import CONTROLLER_NAME, CONTROLLER_NAMESPACE, GROUP, PLURAL, inventory_of, stack_of
from gpu_provision.rbac import permissions
from gpu_provision.rbac.roles import RbacSubject, roles

_LEASES = ("coordination.k8s.io", "leases")
_EDITOR_VERBS = ("get", "list", "watch", "patch", "delete")
_WIDEST_SPEC: dict[str, Any] = {
    "dcgm": {"enabled": True},
    "dcgm_exporter": {"prometheus_rule": {"enabled": True}, "dashboard": {"enabled": True}},
    "pools": {"gpu": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"nvidia.com/gpu.present": "true"}}},
}


def controller_permissions() -> Iterator[Permission]:
    """Yield the controller's own permissions: read stacks, write their status and Events, hold the lease."""
    yield from (Permission(verb, GROUP, PLURAL) for verb in ("get", "list", "watch", "patch"))
    yield Permission("patch", GROUP, f"{PLURAL}/status")
    yield Permission("create", "", "events", "default")  # Events of cluster-scoped objects
    yield Permission("create", *_LEASES, CONTROLLER_NAMESPACE)  # RBAC cannot limit a POST to a name
    yield from (Permission(verb, *_LEASES, CONTROLLER_NAMESPACE, CONTROLLER_NAME) for verb in ("get", "update"))
    yield from (Permission(verb, *_LEASES, "", CONTROLLER_NAME) for verb in ("list", "watch"))
    yield USE_NON_ROOT


USE_NON_ROOT = Permission(
    "use", "security.openshift.io", "securitycontextconstraints", CONTROLLER_NAMESPACE, "nonroot-v2"
)
"""Lets pods run as the image's user on OpenShift, whose default is a user of the namespace; no effect elsewhere."""


def stack_permissions(inventories: Iterable[Inventory], platform: str = "") -> frozenset[Permission]:
    """Return the permissions to install and remove these stacks; without any, stacks of any name.

    Those for any name cover the default namespaces, and no objects that a spec names: a licence's Secret, a runtime
    class. They are the same on each platform, so that rendered and installed roles agree: a rule for an API that is not
    served grants nothing.
    """
    declared = [*inventories]
    if declared:
        return frozenset(one for each in declared for one in _permissions_for_stack(_on_platform(each, platform)))
    return frozenset(one for each in (KUBERNETES, OPENSHIFT) for one in _permissions_for_any_stack(each))


def _on_platform(inventory: Inventory, platform: str) -> Inventory:
    """Return an inventory that names the platform; one that names another keeps it."""
    cluster = inventory.cluster
    return replace(inventory, cluster=replace(cluster, platform=cluster.platform or platform))


def _permissions_for_any_stack(platform: str) -> Iterator[Permission]:
    of_cluster = {"cluster": {"platform": platform}}
    examples = [inventory_of(stack_of({"name": name, **of_cluster, **_WIDEST_SPEC}))[0] for name in ("a", "b")]
    one, other = (frozenset(_permissions_for_stack(inventory)) for inventory in examples if inventory)
    return (each if each in other else each._replace(name="") for each in one)


def editor_permissions(inventory: Inventory) -> frozenset[Permission]:
    """Return the permissions to change or release a GPUStack, and to watch its controller's progress."""
    return frozenset(
        (
            *(Permission(verb, GROUP, PLURAL, "", inventory.name) for verb in _EDITOR_VERBS),
            *(Permission(verb, *_LEASES, "", CONTROLLER_NAME) for verb in ("list", "watch")),
            Permission("get", *_LEASES, CONTROLLER_NAMESPACE, CONTROLLER_NAME),
            *permissions.for_view(inventory),
            *permissions.for_watches(inventory),
            *_watch_permissions(inventory),
        )
    )


def _permissions_for_stack(inventory: Inventory) -> Iterator[Permission]:
    yield from permissions.for_apply(inventory)
    yield from permissions.for_destroy(inventory)
    yield from _watch_permissions(inventory)


def _watch_permissions(inventory: Inventory) -> Iterator[Permission]:
    """Yield the permissions to watch a stack's objects and the Secrets that its spec names."""
    for kind in member_kinds(inventory):
        yield from (Permission(verb, kind.api_version.rpartition("/")[0], KINDS[kind]) for verb in ("list", "watch"))
    yield from permissions.for_followed_platform(inventory)
    for name in named_secrets(inventory):  # by name, in any namespace: the path of the watch has no namespace
        yield from (Permission(verb, "", "secrets", "", name) for verb in ("list", "watch"))


_FILE_OF = {
    "CustomResourceDefinition": "definition.yaml",
    "Namespace": "namespaces.yaml",
    "Deployment": "controller.yaml",
    "NetworkPolicy": "controller.yaml",
    "PodDisruptionBudget": "controller.yaml",
    "Service": "monitoring.yaml",
    "ServiceMonitor": "monitoring.yaml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """Options of the controller Deployment."""

    image: str = ""  # empty if the controller runs outside of the cluster
    replicas: int = 2  # one leads, the others wait to take over
    pull_secrets: tuple[str, ...] = ()  # names of Secrets in its namespace
    kubernetes: str = ""  # version of the cluster; an empty or unknown one counts as new
    platform: str = ""  # of the cluster; empty if unknown


def manifests(shape: InstallOptions, stacks: Iterable[Inventory] = ()) -> list[Manifest]:
    """Return all objects, in the order to apply them; for ``stacks`` see `stack_permissions`."""
    declared = [*stacks]
    account = RbacSubject("ServiceAccount", CONTROLLER_NAME, CONTROLLER_NAMESPACE)
    wanted = {*stack_permissions(declared, shape.platform), *controller_permissions()}
    rights = roles(CONTROLLER_NAME, wanted, [account])
    namespaces = [item for item in rights if item["kind"] == "Namespace"]
    objects = [definition(rules=crd.supports_cel_rules(shape.kubernetes))]
    objects += [_add_labels(item) if item["metadata"]["name"] == CONTROLLER_NAMESPACE else item for item in namespaces]
    objects.append(service_account(CONTROLLER_NAME, CONTROLLER_NAMESPACE, LABELS))
    objects += [_add_labels(item) for item in rights if item["kind"] != "Namespace"]
    monitors = (each.specs.operator_metrics.service_monitor for each in declared)
    monitor = next((each for each in monitors if each.enabled), None)
    objects += _controller_objects(shape) if shape.image else ()
    if not (shape.image and monitor):
        return objects
    if shape.platform == OPENSHIFT:
        objects = [_add_monitoring(item) for item in objects]
        objects += map(_add_labels, prerequisites.monitoring_access(CONTROLLER_NAMESPACE))
    return [*objects, *_monitor(monitor)]


def group_by_file(objects: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    """Return objects by file name, with files in the order to apply them."""
    files: dict[str, list[Manifest]] = {}
    for item in objects:
        files.setdefault(_FILE_OF.get(item["kind"], "rights.yaml"), []).append(item)
    return files


def kustomization(files: Sequence[str]) -> Manifest:
    """Return the kustomization of a folder with these files."""
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [*files]}


def _add_labels(item: Manifest) -> Manifest:
    return {**item, "metadata": {**item["metadata"], "labels": dict(LABELS)}}


def _add_monitoring(item: Manifest) -> Manifest:
    """Return the operator's namespace with the label by which OpenShift's own Prometheus finds it; else the object."""
    if (item["kind"], item["metadata"]["name"]) != ("Namespace", CONTROLLER_NAMESPACE):
        return item
    return {**item, "metadata": {**item["metadata"], "labels": {**LABELS, **prerequisites.MONITORED}}}


def _monitor(spec: ServiceMonitorSpec) -> tuple[Manifest, Manifest]:
    """Return the Service of the controller's metrics, and its ServiceMonitor; each replica is a target."""
    metadata: dict[str, Any] = {"namespace": CONTROLLER_NAMESPACE, "labels": LABELS}
    ports = [{"name": "metrics", "port": 8080, "targetPort": "metrics", "protocol": "TCP"}]
    service = {"type": "ClusterIP", "clusterIP": "None", "selector": dict(LABELS), "ports": ports}
    return (
        manifest(("v1", "Service"), CONTROLLER_NAME, **metadata, spec=service),
        service_monitor(CONTROLLER_NAME, CONTROLLER_NAMESPACE, LABELS, spec, port="metrics"),
    )


def _controller_objects(shape: InstallOptions) -> Iterator[Manifest]:
    """Yield the objects that run the controller. A single replica has no budget, which would block a drain."""
    text = Path(__file__).with_name("controller.yaml").read_text(encoding="utf-8")
    policy, deployment, budget = yaml.safe_load_all(text)
    pod = deployment["spec"]["template"]["spec"]
    deployment["spec"]["replicas"], pod["containers"][0]["image"] = shape.replicas, shape.image
    pod["imagePullSecrets"] = [{"name": name} for name in shape.pull_secrets]
    yield policy
    yield compact(deployment)
    if shape.replicas > 1:
        yield budget if is_at_least(shape.kubernetes, (1, 21)) else {**budget, "apiVersion": "policy/v1beta1"}
