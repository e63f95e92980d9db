"""The Machine Config Operator's controllers: render a pool's configuration, roll its nodes, drain and uncordon them.

The rules are those of openshift/machine-config-operator: at most ``maxUnavailable`` nodes of a pool are away, and nodes
that others cordoned or that are not ready count; the oldest nodes go first; a paused pool keeps its nodes as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES, NOT_FOUND, PODS, TOO_MANY_REQUESTS, Object, ignoring
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController
from gpu_provision.sandbox.controllers.node_lifecycle import index_by_node
from gpu_provision.sandbox.fleet import Timings
from gpu_provision.sandbox.machine_config import (
    APPLIED_DRAIN,
    CONTROLLER_VERSION,
    CURRENT,
    DEGRADED,
    DESIRED,
    DESIRED_DRAIN,
    DONE,
    MACHINE_CONFIGS,
    POOLS,
    REASON,
    STATE,
    RenderError,
    primary_pool,
    render,
    select_configs,
)
from gpu_provision.sandbox.objects import ConditionUpdate, Key

_STAYING = {"DaemonSet", "Node"}  # owners of pods that a drain does not evict


def _is_ready(node: Object) -> bool:
    return objects.has_condition(node, "Ready") and not (node.get("spec") or {}).get("unschedulable")


def _is_done(node: Object) -> bool:
    found = objects.annotations_of(node)
    return found.get(CURRENT) == found.get(DESIRED) and found.get(STATE) == DONE


def _is_degraded(node: Object) -> bool:
    return objects.annotations_of(node).get(STATE) == DEGRADED


def _is_unavailable(node: Object) -> bool:
    return not _is_ready(node) or not (_is_done(node) or _is_degraded(node))


def choose_candidates(nodes: Sequence[Object], target: str, most: int) -> list[Object]:
    """Return the nodes of a pool that may begin their update now, the oldest first."""
    capacity = most - sum(map(_is_unavailable, nodes))
    failing = sum(_is_degraded(node) and objects.annotations_of(node).get(DESIRED) == target for node in nodes)
    waiting = [n for n in nodes if objects.annotations_of(n).get(DESIRED, target) != target and _is_ready(n)]
    waiting.sort(key=lambda node: (objects.creation_timestamp(node), objects.name(node)))
    return waiting[: max(0, capacity - failing)]


def pool_status(pool: Object, nodes: Sequence[Object]) -> Object:
    """Return the status of a pool: counts, conditions, and the configuration that all its nodes have."""
    spec, before = pool["spec"], objects.status(pool)
    target: Object = spec.get("configuration") or {}
    name = target.get("name", "")
    updated = [node for node in nodes if _is_done(node) and objects.annotations_of(node).get(CURRENT) == name]
    ready, degraded = [node for node in updated if _is_ready(node)], [node for node in nodes if _is_degraded(node)]
    is_updated = bool(name) and len(ready) == len(nodes)
    line = f"MachineConfig {name}"
    reasons = [
        f'Node {objects.name(node)} is reporting: "{objects.annotations_of(node).get(REASON)}"' for node in degraded
    ]
    failed = f"{len(degraded)} nodes are reporting degraded status on sync"
    render_failed = objects.has_condition(pool, "RenderDegraded")
    updating = (
        f"Pool is paused; will not update to {line}" if spec.get("paused") else f"All nodes are updating to {line}"
    )
    said = (
        ("Updated", is_updated, "", f"All nodes are updated with {line}" if is_updated else ""),
        ("Updating", not is_updated and not spec.get("paused"), "", "" if is_updated else updating),
        ("NodeDegraded", bool(degraded), failed if degraded else "", ", ".join(reasons)),
        ("Degraded", bool(degraded) or render_failed, "", ", ".join(reasons)),
    )
    updates = (ConditionUpdate(kind, str(state), reason, message) for kind, state, reason, message in said)
    return {
        "conditions": objects.set_conditions(pool, objects.now(), *updates),
        "configuration": target if is_updated else before.get("configuration") or target,
        "degradedMachineCount": len(degraded),
        "machineCount": len(nodes),
        "observedGeneration": pool["metadata"].get("generation", 1),
        "readyMachineCount": len(ready),
        "unavailableMachineCount": sum(map(_is_unavailable, nodes)),
        "updatedMachineCount": len(updated),
    }


class Pools(QueueController[Key]):
    """Renders the configuration of each pool and gives it to its nodes, as many at a time as the pool allows."""

    name = "machine-config"
    component = "machineconfigcontroller-nodecontroller"
    watches = (POOLS, MACHINE_CONFIGS, NODES)
    workers = 1

    def __init__(self, cluster: ControllerManager, timings: Timings) -> None:
        """Follow pools, MachineConfigs and nodes."""
        super().__init__(cluster)
        self._delay, self._changed_at = timings.scale(timings.render_delay), 0.0
        self._pools, self._configs = cluster.informer(POOLS), cluster.informer(MACHINE_CONFIGS)
        self._nodes = cluster.informer(NODES)
        self._configs.on_change(self._on_config)
        for informer in (self._pools, self._nodes):
            informer.on_change(lambda *_: self._requeue_all())

    def _on_config(self, before: Object | None, after: Object | None) -> None:
        """Wait for further changes: several MachineConfigs that belong together make nodes reboot once."""
        if objects.controller_of(after or before or {"metadata": {}}):
            return  # rendered
        self._changed_at = asyncio.get_running_loop().time()
        for key in self._pools.objects:
            self.queue.add_after(key, self._delay)

    def _requeue_all(self) -> None:
        for key in self._pools.objects:
            self.queue.add(key)

    async def sync(self, key: Key) -> None:
        """Render one pool's configuration, start the updates that it allows, and write its status."""
        pool = self._pools.objects.get(key)
        if pool is None or objects.is_deleting(pool):
            return
        is_quiet = asyncio.get_running_loop().time() - self._changed_at >= self._delay
        if is_quiet or not pool["spec"].get("configuration"):
            pool = await self._render(pool)
        else:
            self.queue.add_after(key, self._delay)
        nodes, target = self._nodes_of(pool), objects.value_at(pool, "spec", "configuration", "name")
        if target and not pool["spec"].get("paused"):
            most = objects.resolve_percentage(pool["spec"].get("maxUnavailable"), len(nodes), up=False, default=1)
            for node in choose_candidates(nodes, target, max(1, most)):
                await self.cluster.patch(NODES, node, {"metadata": {"annotations": {DESIRED: target}}})
                self.event(pool, "SetDesiredConfig", f"Targeted node {objects.name(node)} to MachineConfig: {target}")
        await self.cluster.write_status(POOLS, pool, pool_status(pool, self._nodes_of(pool)))

    def _nodes_of(self, pool: Object) -> list[Object]:
        """Return the nodes whose pool this is; one with several custom roles is in none."""
        found, pools = [], tuple(self._pools.objects.values())
        for node in self._nodes.objects.values():
            try:
                chosen = primary_pool(node, pools)
            except RenderError:
                continue
            is_chosen = chosen is not None and objects.name(chosen) == objects.name(pool)
            if is_chosen and CURRENT in objects.annotations_of(node):
                found.append(node)
        return found

    async def _render(self, pool: Object) -> Object:
        """Return the pool with the configuration that its MachineConfigs make now, or with its RenderDegraded."""
        configs = tuple(self._configs.objects.values())
        sources = select_configs(pool, configs)
        version = max((objects.annotations_of(each).get(CONTROLLER_VERSION, "") for each in sources), default="")
        try:
            rendered = render(pool, sources, version)
        except RenderError as error:
            message = f"Failed to render configuration for pool {objects.name(pool)}: {error}"
            return await self._set_render_degraded(pool, message)
        name = objects.name(rendered)
        if ("", name) not in self._configs.objects:
            await self.cluster.create(MACHINE_CONFIGS, rendered)
        named = {"apiVersion": rendered["apiVersion"], "kind": "MachineConfig"}
        configuration = {"name": name, "source": [{**named, "name": objects.name(each)} for each in sources]}
        if pool["spec"].get("configuration") != configuration:
            pool = await self.cluster.patch(POOLS, pool, {"spec": {"configuration": configuration}})
        return await self._set_render_degraded(pool, "")

    async def _set_render_degraded(self, pool: Object, message: str) -> Object:
        update = ConditionUpdate("RenderDegraded", str(bool(message)), "", message)
        conditions = objects.set_conditions(pool, objects.now(), update)
        if conditions == objects.status(pool).get("conditions"):
            return pool
        return await self.cluster.patch(POOLS, pool, {"status": {"conditions": conditions}}, "status")


class Drains(QueueController[Key]):
    """Cordons and drains a node, or uncordons it, when its daemon asks for that."""

    name = "machine-config-drain"
    component = "machineconfigcontroller"
    watches = (NODES, PODS)

    def __init__(self, cluster: ControllerManager, timings: Timings) -> None:
        """Follow nodes and their pods."""
        super().__init__(cluster)
        self._nodes, self._pods, self._timings = cluster.informer(NODES), cluster.informer(PODS), timings
        index_by_node(cluster)
        self._nodes.on_change(lambda _, node: self.queue.add(objects.key_of(node)) if node else None)
        self._pods.on_event(self._on_pod)

    def _on_pod(self, change: str, pod: Object) -> None:
        if change == "DELETED" and objects.node_of(pod):
            self.queue.add(("", objects.node_of(pod)))

    async def sync(self, key: Key) -> None:
        """Do what one node's daemon asks for."""
        node = self._nodes.objects.get(key)
        asked = objects.annotations_of(node).get(DESIRED_DRAIN, "") if node else ""
        if node is None or not asked or objects.annotations_of(node).get(APPLIED_DRAIN) == asked:
            return
        drains = asked.startswith("drain-")
        if drains != bool((node.get("spec") or {}).get("unschedulable")):
            node = await self.cluster.patch(NODES, node, {"spec": {"unschedulable": drains or None}})
        if drains and not await self._drain(key[1]):
            self.queue.add_after(key, self._timings.scale(self._timings.drain_retry))
            return
        await self.cluster.patch(NODES, node, {"metadata": {"annotations": {APPLIED_DRAIN: asked}}})

    async def _drain(self, node: str) -> bool:
        """Evict the pods of a node, but not those of DaemonSets; whether all are gone."""
        pods = [
            pod
            for pod in self._pods.by_index("node", node)
            if (objects.controller_of(pod) or {}).get("kind") not in _STAYING
        ]
        for pod in pods:
            if objects.is_deleting(pod):
                continue
            with ignoring(NOT_FOUND, TOO_MANY_REQUESTS):
                await self.cluster.api.evict(objects.name(pod), objects.namespace(pod))
        return not pods
