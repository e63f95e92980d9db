"""GPU node labels: which nodes have a GPU, and which operands may run there.

The manifests are partial Nodes: labels only, None removes one. They omit labels of the user and of programs that
paused an operand, so such a value survives even if it is written during planning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_provision.components import labels, mig_manager
from gpu_provision.components.targets import node_pools, nodes_for_vms
from gpu_provision.components.toolkit_runtimes import runtime_of
from gpu_provision.model.cluster import DriverBasis, Manifest, NodeFacts, RenderContext, Target
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import FOR_VMS, NOT_IN_INVENTORY

NAME = "node_labels"
TITLE = "GPU node labels"
REQUIRES: tuple[str, ...] = ("machine_config", "nfd")

# The operands of a container workload. As in the GPU Operator, the set does not depend on which components are on:
# turning DCGM on later changes no node, and selectors of others find the label.
OPERANDS = (
    "driver",
    "gpu-feature-discovery",
    "container-toolkit",
    "device-plugin",
    "dcgm",
    "dcgm-exporter",
    "node-status-exporter",
    "operator-validator",
    "client",
)

_DEPLOY = tuple(map(labels.deploy_label, OPERANDS))
_DEPLOY_MIG = labels.deploy_label("mig-manager")
_AUTO_BASES = frozenset({DriverBasis.READ, DriverBasis.LABEL})  # by `driver.enabled: auto`
_NO_NEEDS: dict[str, str | None] = dict.fromkeys((labels.DRIVER_GROUP, labels.HOST_DRIVER, labels.CONTAINER_RUNTIME))


def spec(inventory: Inventory) -> Inventory:
    """Return the inventory: labels cannot be off."""
    return inventory


def manifests(spec: Inventory, context: RenderContext) -> list[Manifest]:
    """Return partial Nodes: targets, other declared nodes with labels, and nodes that left the inventory."""
    live = {node.name: node.labels for node in context.facts.nodes}
    listed = {node.name: node.labels for node in spec.nodes}
    by_name = {target.name: target for target in context.targets}
    wanted: dict[str, dict[str, str | None]] = {
        name: {**pool.labels, **listed.get(name, {})}
        for name, pool in node_pools(context.inventory, context.facts).items()
    }
    for name, target in by_name.items():
        # Declared labels override these, so that an inventory can turn an operand off.
        wanted[name] = _target_labels(spec, target, wanted[name]) | wanted[name]
    for node in leaving_nodes(context):
        own = [key for key in (*_DEPLOY, _DEPLOY_MIG) if node.labels.get(key) == "true"]  # one with another value stays
        own += [labels.DEPLOY_DRIVER] if labels.HOST_DRIVER in node.labels else []
        own += [labels.PLUGIN_CONFIG, labels.PLUGIN_CHOICE] if labels.PLUGIN_CHOICE in node.labels else []
        marks = (labels.GPU_PRESENT, *own, *_NO_NEEDS, labels.VALIDATED, labels.INVENTORY)
        wanted[node.name] = dict.fromkeys(marks) | wanted.get(node.name, {})
    partial = (_partial_node(name, wanted[name], live.get(name, {})) for name in sorted(wanted))
    return [node for node in partial if node["metadata"]["labels"]]


def _target_labels(spec: Inventory, target: Target, declared: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the labels that a GPU node gets besides those that the inventory declares."""
    live = target.labels
    if _is_gpu_gone(live):
        marks = {labels.GPU_PRESENT: "false", labels.INVENTORY: spec.name}
        return {**marks, **_removed_operands(live), **_NO_NEEDS, labels.VALIDATED: None}
    is_off = {**live, **declared}.get(labels.DEPLOY_OPERANDS) == "false"
    # Others set ``false``, ``pre-installed`` and ``paused-...``.
    operands: dict[str, str | None] = {key: "true" for key in _DEPLOY if live.get(key, "") in ("", "true")}
    operands |= _driver_operand(target, live) | _mig_operand(spec, target)
    config = mig_manager.requested_configuration(spec, target.pool)
    return {
        labels.GPU_PRESENT: "true",
        **(_removed_operands(live) if is_off else operands),
        **({labels.MIG_CONFIG: config} if config and mig_manager.wants_geometry(target) else {}),
        labels.DRIVER_GROUP: target.driver_group or None,
        labels.HOST_DRIVER: target.driver.version or None,
        labels.CONTAINER_RUNTIME: runtime_of(target),
        **_plugin_choice(target, live),
        labels.INVENTORY: spec.name,  # by which the inventory can remove its labels later
        **({} if spec.specs.startup_taint.enabled else {labels.VALIDATED: None}),
    }


def _mig_operand(inventory: Inventory, target: Target) -> dict[str, str | None]:
    """Let the MIG manager onto a node that has a configuration, or whose GPUs are capable of MIG."""
    is_wanted = mig_manager.wants_geometry(target) or (
        mig_manager.spec(inventory) and target.labels.get(labels.MIG_CAPABLE) == "true"
    )
    return {_DEPLOY_MIG: "true"} if is_wanted and target.labels.get(_DEPLOY_MIG, "") in {"", "true"} else {}


def _plugin_choice(target: Target, live: Mapping[str, str]) -> dict[str, str | None]:
    """Return the labels of the pool's configuration of the device plugin.

    A second label marks the choice as this tool's, so that a later run removes it; a choice made by hand stays.
    """
    choice = target.pool.device_plugin.config or None
    is_own = choice or labels.PLUGIN_CHOICE in live
    return {labels.PLUGIN_CONFIG: choice, labels.PLUGIN_CHOICE: choice} if is_own else {}


def plugin_choices(context: RenderContext) -> dict[str, str]:
    """Return the configuration of the device plugin that the label of each target names; empty for none."""
    listed = {node.name: node.labels for node in context.inventory.nodes}
    choices: dict[str, str] = {}
    for target in context.targets:
        live = target.labels
        wanted = {**live, **_plugin_choice(target, live), **target.pool.labels, **listed.get(target.name, {})}
        choices[target.name] = wanted.get(labels.PLUGIN_CONFIG) or ""
    return choices


def runnable_targets(context: RenderContext, *operands: str) -> tuple[Target, ...]:
    """Return the targets on which all of these operands can run: with a GPU, and not turned off by a label."""
    listed = {node.name: node.labels for node in context.inventory.nodes}
    switches = (labels.DEPLOY_OPERANDS, *map(labels.deploy_label, operands))
    able = []
    for target in context.targets:
        live = target.labels
        values = {**live, **target.pool.labels, **listed.get(target.name, {})}
        if not _is_gpu_gone(live) and not any(values.get(switch) == "false" for switch in switches):
            able.append(target)
    return tuple(able)


def _is_gpu_gone(live: Mapping[str, str]) -> bool:
    """Whether Node Feature Discovery sees no GPU; until it has labelled the node, the declared GPU counts."""
    return labels.has_nfd_labels(live) and not labels.has_gpu(live)


def _driver_operand(target: Target, live: Mapping[str, str]) -> dict[str, str | None]:
    """Set the GPU Operator's ``pre-installed`` for a host driver, and remove it where the host has none."""
    value, choice = live.get(labels.DEPLOY_DRIVER, ""), target.driver
    if choice.basis is DriverBasis.READ and not choice.on_host and value == labels.PRE_INSTALLED:
        return {labels.DEPLOY_DRIVER: "true"}
    if choice.basis in _AUTO_BASES and choice.on_host and value in ("", "true"):
        return {labels.DEPLOY_DRIVER: labels.PRE_INSTALLED}
    return {}


def _removed_operands(live: Mapping[str, str]) -> dict[str, str | None]:
    present = (key for key in live if key.startswith(labels.DEPLOY_PREFIX))
    return dict.fromkeys(key for key in present if key != labels.DEPLOY_OPERANDS)


def leaving_nodes(context: RenderContext) -> tuple[NodeFacts, ...]:
    """Return the nodes that this inventory has labelled and that are no longer among its GPU nodes."""
    mark, current = context.inventory.name, {target.name for target in (*context.targets, *context.others)}
    marked = (node for node in context.facts.nodes if node.labels.get(labels.INVENTORY) == mark)
    return tuple(node for node in marked if node.name not in current)


def departure_reasons(leaving: Sequence[NodeFacts], context: RenderContext) -> dict[str, str]:
    """Return for each of the leaving nodes why it loses the stack."""
    for_vms = nodes_for_vms(context.inventory, context.facts) if leaving else ()
    return {node.name: FOR_VMS if node.name in for_vms else NOT_IN_INVENTORY for node in leaving}


def _partial_node(name: str, wanted: Mapping[str, str | None], live: Mapping[str, str]) -> Manifest:
    """Return a partial Node; absent labels need no removal, so rendered files hold no nulls."""
    present = {key: value for key, value in sorted(wanted.items()) if value is not None or key in live}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": present}}
