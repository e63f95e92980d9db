"""Device plugin validation: on every GPU node, a CUDA vectorAdd that requests one GPU, or one MIG device.

A pod named by a digest of the validated content runs it once, and is deleted at the end of the run; see
`gpu_provision.planning.verdicts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_provision.components import driver, labels, operands, pods
from gpu_provision.components.gpu_resources import resource_to_request
from gpu_provision.components.mig_manager import requested_configurations
from gpu_provision.components.node_labels import plugin_choices, runnable_targets
from gpu_provision.components.objects import compact, digest
from gpu_provision.components.validator import ACCOUNT
from gpu_provision.model.cluster import Manifest, RenderContext, Target
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import DevicePluginSpec, ValidatorSpec

NAME = "device_plugin_validation"
TITLE = "Device plugin validation"
REQUIRES: tuple[str, ...] = ("driver", "toolkit", "driver_validation", "mig_manager", "device_plugin")

APP = "nvidia-device-plugin-validation"
_NAME_LENGTH = 253
_ANYWHERE = {"operator": "Exists", "effect": "NoSchedule"}


def spec(inventory: Inventory) -> ValidatorSpec | None:
    """Return the validator's spec, whose image holds vectorAdd, or None if there is no device plugin."""
    return inventory.specs.validator if inventory.specs.device_plugin.enabled else None


def manifests(spec: ValidatorSpec, context: RenderContext) -> list[Manifest]:
    """Return a pod per target that can run it; a change of the validated content gives a new pod.

    The content is the pod itself, device plugin, driver, toolkit, the declared number of GPUs, and how the inventory
    shares them.
    """
    plugin, choices = context.inventory.specs.device_plugin, plugin_choices(context)
    common = [plugin.image.reference, toolkit_image(context)]
    shared = {choice: sharing_digest(plugin, choice) for choice in {*choices.values()}}
    geometries = requested_configurations(context.inventory)
    pod_specs, digests = dict[str, dict[str, Any]](), dict[tuple[Any, ...], str]()
    result = []
    for target in runnable_targets(context, "container-toolkit", "device-plugin"):
        resource = resource_to_request(target.facts.devices if target.facts else {})
        if resource not in pod_specs:
            pod_specs[resource] = _pod_spec(spec, context, resource)
        content = filter(None, (geometries[target.pool.name], shared[choices[target.name]]))
        needs = driver_of(target), target.pool.gpu.count if target.pool.gpu else 0, *content
        if (resource, *needs) not in digests:
            digests[resource, *needs] = digest([digest(pod_specs[resource]), *common, *needs])
        result.append(_pod(context, target, pod_specs[resource], digests[resource, *needs]))
    return result


def sharing_digest(plugin: DevicePluginSpec, choice: str) -> str:
    """Return a digest of a node's configuration of the device plugin; empty if the inventory does not have it.

    Where the label alone changes, no pod restarts, which would repeat the validation.
    """
    declared = plugin.config.data.get(choice or plugin.default_config)
    return digest(declared) if plugin.enabled and declared is not None else ""


def _pod_spec(spec: ValidatorSpec, context: RenderContext, resource: str) -> dict[str, Any]:
    """Return the pod spec that all nodes with a resource share.

    They run on tainted and cordoned nodes, too. They have no priority, so that a validation never preempts a workload.
    """
    container = operands.vector_add(context, "plugin-validation", gpus={resource: 1})
    built: dict[str, Any] = compact(
        {
            "restartPolicy": "Never",
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": False,
            "imagePullSecrets": pods.pull_secrets(spec),
            "tolerations": pods.operand_tolerations(context, (_ANYWHERE,)),
            "containers": [container],
            "runtimeClassName": operands.runtime_class(context),
        }
    )
    return built


def _pod(context: RenderContext, target: Target, pod_spec: Mapping[str, Any], content: str) -> Manifest:
    name = pod_name(target.name, content[:8])
    metadata = {"name": name, "namespace": context.namespace, "labels": {labels.APP: APP, labels.DIGEST: content}}
    # Bound to the node, and yet the scheduler counts its GPU, which ``nodeName`` would bypass.
    by_name = {"key": "metadata.name", "operator": "In", "values": [target.name]}
    terms = {"nodeSelectorTerms": [{"matchFields": [by_name]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**pod_spec, "affinity": affinity}}


def pod_name(node: str, short_digest: str) -> str:
    """Return ``app-node-digest``, with a digest in place of the node's name if that is too long."""
    name = f"{APP}-{node}-{short_digest}"
    return name if len(name) <= _NAME_LENGTH else f"{APP}-{digest(node)}-{short_digest}"


def toolkit_image(context: RenderContext) -> str:
    """Return the toolkit's image; empty if the hosts have their own."""
    toolkit = context.inventory.specs.toolkit
    return toolkit.image.reference if toolkit.enabled else ""


def driver_of(target: Target) -> str:
    """Return the driver image of a node, or the version of the host's own; empty if unknown."""
    return driver.image_of(target) or target.driver.version
