"""Node Feature Discovery's master, which turns NodeFeatures into node labels, and its garbage collector."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour
from gpu_provision.sandbox.nodes.behaviours.node_features import PREFIX, node_names
from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.world import NODE_FEATURES, NODES, NOT_FOUND

Object = dict[str, Any]

OWNED = "nfd.node.kubernetes.io/feature-labels"
_CONFIG = "/etc/kubernetes/node-feature-discovery/nfd-master.conf"
_DENIED = ("kubernetes.io", "*.kubernetes.io")
_ALLOWED = (
    "feature.node.kubernetes.io",
    "*.feature.node.kubernetes.io",
    "profile.node.kubernetes.io",
    "*.profile.node.kubernetes.io",
)
_GC_INTERVAL = 60.0


def node_labels(features: Iterable[Mapping[str, Any]], extra_namespaces: Sequence[str]) -> dict[str, str]:
    """Return the labels of one node from all its NodeFeatures; later names win."""
    labels: dict[str, str] = {}
    for feature in sorted(features, key=lambda f: (f["metadata"]["namespace"], f["metadata"]["name"])):
        labels |= feature["spec"].get("labels") or {}
    return {name: value for name, value in labels.items() if _allowed(name, extra_namespaces)}


def _allowed(name: str, extra: Sequence[str]) -> bool:
    namespace = name.partition("/")[0]
    if any(fnmatch.fnmatchcase(namespace, pattern) for pattern in (*_ALLOWED, *extra)):
        return True
    return not any(fnmatch.fnmatchcase(namespace, pattern) for pattern in _DENIED)


def label_patch(node: Mapping[str, Any], wanted: Mapping[str, str]) -> Object | None:
    """Return the patch that gives a node the wanted labels and removes those the master gave it before."""
    labels = node["metadata"].get("labels") or {}
    owned_text = (node["metadata"].get("annotations") or {}).get(OWNED, "")
    owned = {name if "/" in name else PREFIX + name for name in owned_text.split(",") if name}
    change: dict[str, str | None] = {name: value for name, value in wanted.items() if labels.get(name) != value}
    change |= {name: None for name in owned - set(wanted) if name in labels}
    listed = ",".join(sorted(name.removeprefix(PREFIX) for name in wanted))
    if not change and listed == owned_text:
        return None
    return {"metadata": {"labels": change, "annotations": {OWNED: listed or None}}}


class _Master:
    """Follows NodeFeatures and labels the nodes they are about."""

    def __init__(self, container: Container, extra_namespaces: Sequence[str]) -> None:
        self._container, self._extra = container, extra_namespaces
        self._api = container.world.api
        self._informer = Informer(self._api, NODE_FEATURES)
        self._informer.index("node", node_names)
        self._features = container.world.features or self._informer
        self._dirty: dict[str, None] = {}
        self._work = asyncio.Event()

    def _changed(self, before: Object | None, after: Object | None) -> None:
        for feature in (before, after):
            self._dirty.update(dict.fromkeys(node_names(feature) if feature else ()))
        self._work.set()

    async def run(self) -> int:
        async with asyncio.TaskGroup() as group:
            if self._features is self._informer:
                group.create_task(self._informer.run())
                await self._informer.synced()
            await self._every_node()
            self._features.on_change(self._changed)
            self._container.up()
            while True:
                await self._work.wait()
                self._work.clear()
                while self._dirty:
                    name = next(iter(self._dirty))
                    del self._dirty[name]
                    await self._label(name)

    async def _every_node(self) -> None:
        """Look at nodes without a NodeFeature too: they may have labels from one that is gone."""
        nodes, _ = await self._api.list(NODES)
        self._dirty.update(dict.fromkeys(node["metadata"]["name"] for node in nodes))
        self._work.set()

    async def _label(self, name: str) -> None:
        try:
            node = await self._api.get(NODES, name)
            patch = label_patch(node, node_labels(self._features.by("node", name), self._extra))
            if patch is not None:
                await self._api.patch(NODES, name, patch)
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                self._container.log(f"failed to update node {name}: {refusal.message}")


async def _master(container: Container) -> int:
    container.log("Node Feature Discovery Master", "starting the nfd api controller")
    if "-prune" in container.argv or "--prune" in container.argv:
        return await _prune(container)
    try:
        config = yaml.safe_load(container.files.read(_CONFIG)) or {}
    except yaml.YAMLError as error:
        container.log(f"failed to parse config file: {error}")
        return 1
    return await _Master(container, tuple(config.get("extraLabelNs") or ())).run()


async def _prune(container: Container) -> int:
    """Take the labels off every node."""
    nodes, _ = await container.world.api.list(NODES)
    for node in nodes:
        patch = label_patch(node, {})
        if patch is not None:
            await container.world.api.patch(NODES, node["metadata"]["name"], patch)
    return 0


async def _collect(container: Container) -> int:
    """Remove the NodeFeatures of nodes that are gone."""
    container.log("Node Feature Discovery Garbage Collector")
    container.up()
    api = container.world.api
    while True:
        try:
            names = {node["metadata"]["name"] for node in (await api.list(NODES))[0]}
            features, _ = await api.list(NODE_FEATURES)
            for feature in features:
                if not set(node_names(feature)) <= names:
                    metadata = feature["metadata"]
                    await api.delete(NODE_FEATURES, metadata["name"], metadata["namespace"])
        except (ApiError, OSError) as problem:
            container.log(f"garbage collection failed: {problem}")
        await container.sleep(_GC_INTERVAL)


MASTER = Behaviour(_master)
GARBAGE_COLLECTOR = Behaviour(_collect)
