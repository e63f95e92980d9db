"""Node Feature Discovery: the worker publishes NodeFeatures, the master turns them into node labels."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import yaml

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFLICT, NODE_FEATURES, NODES, NOT_FOUND, ApiError, Object
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.container import Container, Program

NODE_NAME_LABEL = "nfd.node.kubernetes.io/node-name"
PREFIX = "feature.node.kubernetes.io/"
_NO_FEATURES: Object = {"attributes": {}, "flags": {}, "instances": {}}
"""Raw features are for NodeFeatureRules, which the master here does not know."""


def node_names(feature: Object) -> tuple[str, ...]:
    """Return the node that a NodeFeature is about, as an index wants it."""
    name = (feature["metadata"].get("labels") or {}).get(NODE_NAME_LABEL)
    return (name,) if name else ()


def _owners(pod: Mapping[str, Any]) -> list[Object]:
    """Return the pod's controller and the pod: the object goes when both are gone."""
    controllers = [
        {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}
        for owner in pod["metadata"].get("ownerReferences") or ()
    ]
    me = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return [*controllers, me]


def node_feature(name: str, container: Container, labels: Mapping[str, str]) -> Object:
    """Return the NodeFeature of a container's node."""
    return {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": name,
            "namespace": container.namespace,
            "labels": {NODE_NAME_LABEL: container.machine.name},
            "ownerReferences": _owners(container.pod),
        },
        "spec": {"features": _NO_FEATURES, "labels": dict(sorted(labels.items()))},
    }


def has_changed(labels: Callable[[], Mapping[str, str]], from_these: Mapping[str, str]) -> Callable[[], bool]:
    """Return a condition: what would be published now is not what was."""
    return lambda: labels() != from_these


async def publish(container: Container, wanted: Object) -> None:
    """Create or update a NodeFeature; one that says the same already is left alone."""
    api, name, namespace = container.simulation.api, wanted["metadata"]["name"], container.namespace
    while True:
        try:
            live = await container.simulation.find(NODE_FEATURES, name, namespace)
            if live is None:
                await api.create(NODE_FEATURES, wanted, namespace)
            elif live.get("spec") != wanted["spec"] or objects.owners(live) != objects.owners(wanted):
                version = {"resourceVersion": live["metadata"]["resourceVersion"]}
                await api.update(NODE_FEATURES, {**wanted, "metadata": {**wanted["metadata"], **version}}, namespace)
        except ApiError as refusal:
            if refusal.code not in {CONFLICT, NOT_FOUND}:
                raise
            if refusal.code == NOT_FOUND:
                container.log(f"failed to publish NodeFeature {namespace}/{name}: {refusal.message}")
            await container.simulation.pause()
        else:
            return


_WORKER_CONFIG = "/etc/kubernetes/node-feature-discovery/nfd-worker.conf"
_CLASSES = ("03", "0b40", "12")
_FIELDS = ("class", "vendor")
_CPUID = ("ADX", "AESNI", "AVX", "AVX2", "FMA3")


async def _run_worker(container: Container) -> int:
    node = container.env.get("NODE_NAME", "")
    if not node:
        container.log("unable to get node name: environment variable NODE_NAME is not set")
        return 1
    config = _config(container)
    container.log("Node Feature Discovery Worker", f'configuration file "{_WORKER_CONFIG}" parsed')
    container.up()
    machine = container.machine
    while True:
        await machine.until(lambda: machine.faults.of("nfd-silent", machine.name) is None)
        labels = discover(container, config)
        await publish(container, node_feature(node, container, labels))
        await machine.until(has_changed(lambda: discover(container, config), labels))


def _config(container: Container) -> Mapping[str, Any]:
    try:
        parsed = yaml.safe_load(container.files.read(_WORKER_CONFIG))
    except yaml.YAMLError as error:
        container.log(f"failed to parse config file: {error}")
        return {}
    return parsed if isinstance(parsed, dict) else {}


def discover(container: Container, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a machine, as far as the container's mounts show it."""
    spec, files = container.machine.spec, container.files
    major, minor, revision = [*spec.kernel.split("-")[0].split("."), "0", "0"][:3]
    found = {
        **{f"cpu-cpuid.{flag}": "true" for flag in _CPUID},
        "cpu-hardware_multithreading": "true",
        "cpu-model.vendor_id": "Intel",
        "kernel-config.NO_HZ": "true",
        "kernel-config.NO_HZ_IDLE": "true",
        "kernel-version.full": spec.kernel,
        "kernel-version.major": major,
        "kernel-version.minor": minor,
        "kernel-version.revision": revision,
    }
    if files.host_path("/host-etc/os-release") == "/etc/os-release":
        release, _, minor = spec.os_version.partition(".")
        system = {"ID": spec.os_id, "VERSION_ID": spec.os_version, "VERSION_ID.major": release}
        system |= {"VERSION_ID.minor": minor} if minor else {}
        found |= {f"system-os_release.{key}": value for key, value in system.items()}
    if files.host_path("/host-sys/bus/pci"):
        pci = ((config.get("sources") or {}).get("pci")) or {}
        classes = tuple(map(str, pci.get("deviceClassWhitelist") or _CLASSES))
        fields = pci.get("deviceLabelFields") or _FIELDS
        for device in container.machine.pci_devices():
            if device.pci_class.startswith(classes):
                values = {"class": device.pci_class, "vendor": device.vendor, "device": device.device}
                name = "_".join(values[field] for field in fields if field in values)
                found[f"pci-{name}.present"] = "true"
    return {name if "/" in name else f"{PREFIX}{name}": value for name, value in found.items()}


WORKER = Program(_run_worker)

OWNED = "nfd.node.kubernetes.io/feature-labels"
_MASTER_CONFIG = "/etc/kubernetes/node-feature-discovery/nfd-master.conf"
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


class _NfdMaster:
    """Follows NodeFeatures and labels the nodes they are about."""

    def __init__(self, container: Container, extra_namespaces: Sequence[str]) -> None:
        self._container, self._extra = container, extra_namespaces
        self._api = container.simulation.api
        self._informer = Informer(self._api, NODE_FEATURES)
        self._informer.index("node", node_names)
        self._dirty: dict[str, None] = {}
        self._work = asyncio.Event()

    def _changed(self, before: Object | None, after: Object | None) -> None:
        for feature in (before, after):
            self._dirty.update(dict.fromkeys(node_names(feature) if feature else ()))
        self._work.set()

    async def run(self) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            await self._informer.synced()
            await self._every_node()
            self._informer.on_change(self._changed)
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
            patch = label_patch(node, node_labels(self._informer.by("node", name), self._extra))
            if patch is not None:
                await self._api.patch(NODES, name, patch)
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                self._container.log(f"failed to update node {name}: {refusal.message}")


async def _run_master(container: Container) -> int:
    container.log("Node Feature Discovery Master", "starting the nfd api controller")
    try:
        config = yaml.safe_load(container.files.read(_MASTER_CONFIG)) or {}
    except yaml.YAMLError as error:
        container.log(f"failed to parse config file: {error}")
        return 1
    return await _NfdMaster(container, tuple(config.get("extraLabelNs") or ())).run()


async def _run_collector(container: Container) -> int:
    """Remove the NodeFeatures of nodes that are gone."""
    container.log("Node Feature Discovery Garbage Collector")
    container.up()
    api = container.simulation.api
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


MASTER = Program(_run_master)
GARBAGE_COLLECTOR = Program(_run_collector)
