"""Attaches simulated nodes to a cluster that runs elsewhere: a real API server, or another sandbox's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_provision.model.findings import Finding, ProvisionError, Unreachable
from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.client import Credentials, HttpApi
from gpu_provision.sandbox.fleet import Fleet
from gpu_provision.sandbox.nodes.behaviours.nfd import node_names
from gpu_provision.sandbox.nodes.feature_board import FeatureBoard
from gpu_provision.sandbox.nodes.kubelet_server import (
    ADDRESS,
    Certificate,
    KeptLogs,
    LogOf,
    LogSink,
    PostedLogs,
    kubelet_server,
)
from gpu_provision.sandbox.nodes.node import SIMULATED
from gpu_provision.sandbox.nodes.simulation import build_world, run_nodes
from gpu_provision.sandbox.nodes.world import NODES, World

_SANDBOX = "sandbox"
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How to attach.

    Attributes:
        beside_others: Also in a cluster that has nodes of its own, whose pods may then land on simulated nodes.
        home: Where the machines keep what they know; without it they boot afresh.
        direct_features: Spare the API server the NodeFeature objects, for one that cannot store them.
        certificate: What the kubelets show to an API server that asks for logs and verifies them.
    """

    beside_others: bool = False
    home: Path | None = None
    direct_features: bool = False
    certificate: Certificate | None = None


async def attach(
    credentials: Credentials, fleet: Fleet, terms: Terms | None = None, *, registered: asyncio.Event | None = None
) -> None:
    """Register a fleet's nodes with a cluster and run their pods until cancelled.

    ``registered`` is set once all nodes are there. Raises ProvisionError (GP720), or Unreachable (GP721).
    """
    terms = terms or Terms()
    async with HttpApi(credentials) as api, asyncio.TaskGroup() as group:
        await _check(api, credentials, terms)
        async with _world(api, fleet, terms, group) as world:
            world.features = FeatureBoard(node_names) if terms.direct_features else None
            await run_nodes(world, fleet, registered=registered)


async def _check(api: HttpApi, credentials: Credentials, terms: Terms) -> None:
    try:
        nodes, _ = await api.list(NODES)
    except (OSError, ApiError) as error:
        what = "the cluster does not answer, or refuses"
        finding = Finding(code="GP721", what=what, where=credentials.server, evidence=str(error))
        raise Unreachable(finding) from error
    own = [n["metadata"]["name"] for n in nodes if SIMULATED not in (n["metadata"].get("annotations") or {})]
    if own and not terms.beside_others:
        shown = ", ".join(own[:_SHOWN]) + (" ..." if len(own) > _SHOWN else "")
        what = f"context {credentials.context} has {len(own)} nodes that are not simulated; nothing was attached"
        fix = "use a cluster of your own for this, or say --yes if pods may land on simulated nodes"
        raise ProvisionError(Finding(code="GP720", what=what, where=credentials.server, evidence=shown, fix=fix))


@contextlib.asynccontextmanager
async def _world(api: HttpApi, fleet: Fleet, terms: Terms, group: asyncio.TaskGroup) -> AsyncIterator[World]:
    """Send logs where the cluster looks for them: a sandbox keeps them itself, a real one asks the kubelet."""
    if _SANDBOX in await api.version():
        posted = PostedLogs(lambda of, text: _post(api, of, text))
        group.create_task(posted.run())
        yield build_world(api, fleet, posted, home=terms.home)
        return
    kept = KeptLogs()
    world: World | None = None

    def status_of(namespace: str, pod: str, container: str) -> Mapping[str, Any]:
        return {} if world is None else _status_of(world, namespace, pod, container)

    async with kubelet_server(kept, status_of, terms.certificate) as port:
        sink: LogSink = kept
        world = build_world(api, fleet, sink, home=terms.home, kubelet_address=ADDRESS, kubelet_port=port)
        world.pods.on_change(lambda old, new: kept.forget(*_named(old)) if old and new is None else None)
        yield world


async def _post(api: HttpApi, of: LogOf, text: str) -> None:
    with contextlib.suppress(ApiError, OSError):  # the pod is gone, and its output with it
        await api.post_log(of.namespace, of.pod, of.container, text, restart=of.restart)


def _named(pod: dict[str, dict[str, str]]) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _status_of(world: World, namespace: str, pod: str, container: str) -> Mapping[str, Any]:
    status = (world.pods.objects.get((namespace, pod)) or {}).get("status") or {}
    statuses = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return next((one for one in statuses if one["name"] == container), {})
