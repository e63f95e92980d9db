"""Startup taint: a node registers with it, and loses it once all of its validations have passed.

The manifests are partial Nodes with the label that names what was validated; the same
write removes the taint (`gpu_provision.planning.verdicts`). A node that is not in the cluster yet gets none.
"""

from __future__ import annotations

from gpu_provision.components import device_plugin_validation, labels
from gpu_provision.components.node_labels import plugin_choices, runnable_targets
from gpu_provision.components.objects import digest
from gpu_provision.components.targets import node_pools, unassigned_nodes
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, RenderContext, Target
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.specs import StartupTaintSpec

NAME = "startup_taint"
TITLE = "Startup taint"
REQUIRES: tuple[str, ...] = ("driver", "driver_validation", "device_plugin_validation")


def manifests(_spec: StartupTaintSpec, context: RenderContext) -> list[Manifest]:
    """Return a partial Node per target that is validated."""
    choices = plugin_choices(context)
    marks = {
        target.name: {labels.VALIDATED: validated_content(target, context, choices[target.name])}
        for target in runnable_targets(context, "container-toolkit")
        if target.facts
    }
    return [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": marks[name]}} for name in marks]


def problems(_spec: StartupTaintSpec, context: RenderContext) -> tuple[Finding, ...]:
    """Return declared nodes, and unassigned GPU nodes, that keep the taint because no validation runs there."""
    others = {target.name for target in context.others}
    freed = others.union(target.name for target in runnable_targets(context, "container-toolkit"))
    known = {*node_pools(context.inventory, context.facts), *unassigned_nodes(context.inventory, context.facts)}
    tainted = (
        node.name
        for node in context.facts.nodes
        if node.name in known - freed and any(taint.get("key") == labels.NOT_VALIDATED for taint in node.taints)
    )
    return tuple(
        Finding(
            code=codes.STAYS_TAINTED,
            what=f"{node} has the startup taint, and no run will remove it",
            where=f"Node {node}",
            evidence="no validation runs there: no pool with a GPU has the node, or a label keeps the stack's pods off",
            consequence=f"pods that do not tolerate {labels.NOT_VALIDATED} do not start there",
            fix=f"kubectl taint node {node} {labels.NOT_VALIDATED}- "
            "and let only nodes with a validation register with the taint",
            severity=Severity.WARNING,
        )
        for node in tainted
    )


def validated_content(target: Target, context: RenderContext, choice: str) -> str:
    """Return a digest of the validated content of a node; equal content gives equal digests.

    ``choice``: the node's configuration of the device plugin.
    """
    specs, gpu = context.inventory.specs, target.pool.gpu
    plugin = specs.device_plugin
    sharing = device_plugin_validation.sharing_digest(plugin, choice)
    return digest(
        {
            "driver": device_plugin_validation.driver_of(target),
            "toolkit": device_plugin_validation.toolkit_image(context),
            "device_plugin": plugin.image.reference if plugin.enabled else "",
            "validator": specs.validator.image.reference,
            "gpus": gpu.count if gpu else 0,
            **({"sharing": sharing} if sharing else {}),
        }
    )
