"""The controllers of the sandbox's cluster, written against ``sandbox.api.Api`` only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from gpu_provision.sandbox.api import NODES, Api, ServedResource
from gpu_provision.sandbox.controllers.daemonset import DaemonSets
from gpu_provision.sandbox.controllers.deletion import GarbageCollector, Namespaces, OwnershipGraph
from gpu_provision.sandbox.controllers.deployment import Deployments, ReplicaSets
from gpu_provision.sandbox.controllers.disruption import DisruptionBudgets
from gpu_provision.sandbox.controllers.job import Jobs
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController, supervise
from gpu_provision.sandbox.controllers.node_filters import NodeViews
from gpu_provision.sandbox.controllers.node_lifecycle import NodeLifecycle, PodCollector, TaintEviction
from gpu_provision.sandbox.controllers.scheduler import Scheduler

Build = Callable[[ControllerManager], Iterable[QueueController[Any]]]


async def run_controllers(
    api: Api, *, resources: Callable[[], Iterable[ServedResource]], operators: Build = lambda _: ()
) -> None:
    """Run all controllers until cancelled; one that fails is logged and started again.

    Args:
        api: The cluster.
        resources: Returns what the API server has now: garbage collection and namespace deletion reach all of it.
        operators: Returns the controllers that a distribution of Kubernetes has besides.
    """
    cluster = ControllerManager(api)
    views, graph = NodeViews(cluster.informer(NODES)), OwnershipGraph(cluster, resources)
    controllers: tuple[QueueController[Any], ...] = (
        NodeLifecycle(cluster),
        Scheduler(cluster, views),
        DaemonSets(cluster, views),
        ReplicaSets(cluster),
        Deployments(cluster),
        Jobs(cluster),
        DisruptionBudgets(cluster),
        TaintEviction(cluster, views),
        PodCollector(cluster),
        GarbageCollector(cluster, graph),
        Namespaces(cluster, graph),
        *operators(cluster),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(supervise(cluster.run, "the informers"))
        for controller in controllers:
            group.create_task(supervise(controller.run, f"the {controller.name} controller"))
