"""The driver and the MIG devices that each node gets from the stack, and the nodes that lose its driver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpu_provision.components import labels, mig_manager, node_labels
from gpu_provision.components.gpu_resources import declared_devices, has_geometry_by_plain_name
from gpu_provision.components.sharing import expected_replicas
from gpu_provision.model.cluster import NodeFacts, Target, ref_of
from gpu_provision.model.inventory import Inventory, RunSelection
from gpu_provision.planning.rollout_changes import pods_kept_by_labels
from gpu_provision.planning.states import ClusterState, is_observed
from gpu_provision.planning.upgrades import LACKS_TOOLKIT, has_stale_rollout
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.rollout.budgets import SHARED, domain_of
from gpu_provision.rollout.observe import DesiredDriver
from gpu_provision.rollout.snapshot import StackPresence

LEFT_OUT = "is excluded by --limit"
"""Why a rollout excludes a node that is not in the run's selection."""

AWAITS_CONFIG = "waits for its MachineConfig"
"""Why a rollout excludes a node for now: the Machine Config Operator is going to drain and reboot it."""


def desired_drivers(
    seen: ClusterPlan | ClusterState, *, rebooting: Collection[str] = frozenset()
) -> dict[str, DesiredDriver]:
    """Return the desired driver of every node that gets one from the stack.

    ``rebooting``: nodes that the Machine Config Operator has yet to reboot.
    """
    daemonsets = {
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]: item
        for item in seen.desired.get("driver", ())
        if item["kind"] == "DaemonSet"
    }
    managers = (each for each in seen.desired.get(mig_manager.NAME, ()) if each["kind"] == "DaemonSet")
    mig_template = next((each["spec"]["template"] for each in managers), None)
    live = {group: seen.observed.members.get(ref_of(item)) for group, item in daemonsets.items()}
    unobserved = {group for group, item in live.items() if item and not is_observed(item)}
    inventory = seen.context.inventory
    place = {node.name: position for position, node in enumerate(inventory.nodes)}
    geometries, every = _requested_geometries(seen), (*seen.context.targets, *seen.context.others)
    devices = _declared_devices(every, seen)
    return {
        target.name: DesiredDriver(
            domain=domain_of(target.pool),
            position=place.get(target.name, len(place)),
            template=daemonsets[target.driver_group]["spec"]["template"] if target.driver_group in daemonsets else None,
            version=target.pool.driver.image.version,
            mig=_requested_geometry(target, geometries, inventory),
            mig_manager=mig_template if mig_manager.wants_geometry(target) else None,
            devices=devices.get(target.name),
            has_device_plugin="device_plugin" in seen.desired,
            left_out=_exclusion(target, seen.context.selection, rebooting),
            is_template_observed=target.driver_group not in unobserved,
        )
        for target in every
        if target.driver_group in daemonsets
        or (target.driver.on_host and _requested_geometry(target, geometries, inventory))
    }


def _exclusion(target: Target, part: RunSelection, rebooting: Collection[str]) -> str:
    if not part.has_node(target.name):
        return LEFT_OUT
    return AWAITS_CONFIG if target.name in rebooting else LACKS_TOOLKIT if target.lacks_toolkit else ""


def _declared_devices(targets: Iterable[Target], seen: ClusterPlan | ClusterState) -> dict[str, Mapping[str, int]]:
    """Return the devices that each node with a MIG configuration offers; nodes with equal needs share them."""
    divided = [target for target in targets if target.pool.mig]
    inventory, choices = seen.context.inventory, node_labels.plugin_choices(seen.context) if divided else {}
    plugin = inventory.specs.device_plugin
    read = seen.context.facts.config_maps.get(plugin.config_map)
    found: dict[tuple[str, str, str], Mapping[str, int]] = {}
    result: dict[str, Mapping[str, int]] = {}
    for target in divided:
        choice = choices.get(target.name, target.labels.get(labels.PLUGIN_CONFIG, ""))
        kind = target.pool.name, target.labels.get(labels.GPU_PRODUCT, ""), choice
        if kind not in found:
            replicas = expected_replicas(plugin, choice, read)
            found[kind] = declared_devices(target.pool, kind[1], inventory, replicas)
        result[target.name] = found[kind]
    return result


def _requested_geometries(seen: ClusterPlan | ClusterState) -> dict[str, str]:
    """Return the MIG configuration that the nodes of each pool request; none if the run leaves out the manager."""
    is_on = mig_manager.NAME in seen.desired
    return mig_manager.requested_configurations(seen.context.inventory) if is_on else {}


def _requested_geometry(target: Target, geometries: Mapping[str, str], inventory: Inventory) -> str:
    """Return the MIG configuration that a node requests, of those of all pools; empty without one."""
    config = geometries.get(target.pool.name, "") if mig_manager.wants_geometry(target) else ""
    return target.labels[labels.MIG_CONFIG] if config and has_geometry_by_plain_name(target, inventory) else config


def nodes_without_driver(seen: ClusterState) -> dict[str, DesiredDriver]:
    """Return the nodes that lose the driver of the stack: they left the inventory, or have a host driver now.

    The inventory's own policy applies to them.
    """
    geometries, stale = _requested_geometries(seen), filter(has_stale_rollout, seen.context.targets)
    nodes = {
        target.name: StackPresence.STAYS
        for target in stale
        if not _requested_geometry(target, geometries, seen.context.inventory)
    }
    leaving = node_labels.leaving_nodes(seen.context)
    for node in leaving:
        presence = StackPresence.ENDING if any(pods_kept_by_labels(node, seen)) else StackPresence.BARE
        nodes[node.name] = StackPresence.LABELLED if labels_to_remove(node, seen) else presence
    last, part = len(seen.context.inventory.nodes), seen.context.selection
    left_out = {name: "" if part.has_node(name) else LEFT_OUT for name in nodes}
    why = dict.fromkeys(nodes, "") | node_labels.departure_reasons(leaving, seen.context)
    return {
        name: DesiredDriver(
            domain=SHARED, position=last, template=None, left_out=left_out[name], stack=stack, leaves_because=why[name]
        )
        for name, stack in nodes.items()
    }


def labels_to_remove(node: NodeFacts, seen: ClusterState) -> dict[str, None]:
    """Return the labels that a leaving node loses before the label of its inventory."""
    wanted = seen.node_labels.get(node.name, {})
    gone = (key for key, value in wanted.items() if value is None and key != labels.INVENTORY)
    return {key: None for key in gone if key in node.labels}
