"""Starts every controller and keeps them running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from gpu_provision.sandbox.api import Api, Resource
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller, supervise
from gpu_provision.sandbox.controllers.daemonset import DaemonSets
from gpu_provision.sandbox.controllers.deployment import Deployments
from gpu_provision.sandbox.controllers.disruption import DisruptionBudgets
from gpu_provision.sandbox.controllers.endpoints import EndpointSets
from gpu_provision.sandbox.controllers.garbage import GarbageCollector, Universe
from gpu_provision.sandbox.controllers.job import Jobs
from gpu_provision.sandbox.controllers.namespaces import Namespaces
from gpu_provision.sandbox.controllers.node_lifecycle import NodeLifecycle
from gpu_provision.sandbox.controllers.node_views import NodeViews
from gpu_provision.sandbox.controllers.pod_gc import PodCollector
from gpu_provision.sandbox.controllers.replicaset import ReplicaSets
from gpu_provision.sandbox.controllers.resources import NODES, built_in_resources
from gpu_provision.sandbox.controllers.scheduler import Scheduler
from gpu_provision.sandbox.controllers.statefulset import StatefulSets
from gpu_provision.sandbox.controllers.taint_eviction import TaintEviction


async def run_controllers(api: Api, *, resources: Callable[[], Iterable[Resource]] = built_in_resources) -> None:
    """Run all controllers until cancelled; one that fails is logged and started again.

    Args:
        api: The cluster.
        resources: What garbage collection and namespace deletion reach. The built-in resources and those
            of CustomResourceDefinitions always belong to it.
    """
    cluster = Cluster(api)
    controllers = _controllers(cluster, Universe(cluster, resources))
    async with asyncio.TaskGroup() as group:
        group.create_task(supervise(cluster.run, "the informers"))
        for controller in controllers:
            group.create_task(supervise(controller.run, f"the {controller.name} controller"))


def _controllers(cluster: Cluster, universe: Universe) -> tuple[Controller[Any], ...]:
    views = NodeViews(cluster.informer(NODES))
    return (
        NodeLifecycle(cluster),
        Scheduler(cluster, views),
        DaemonSets(cluster, views),
        ReplicaSets(cluster),
        Deployments(cluster),
        StatefulSets(cluster),
        Jobs(cluster),
        EndpointSets(cluster),
        DisruptionBudgets(cluster),
        TaintEviction(cluster, views),
        PodCollector(cluster),
        GarbageCollector(cluster, universe),
        Namespaces(cluster, universe),
    )
