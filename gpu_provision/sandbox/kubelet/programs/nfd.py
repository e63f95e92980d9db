"""Node Feature Discovery: the worker publishes NodeFeatures, the master turns them into node labels."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import yaml

from gpu_provision.sandbox.api import CONFLICT, NODE_FEATURES, NODES, NOT_FOUND, ApiError, Object
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.kubelet.machine import SimulatedPciDevice

NODE_NAME_LABEL = "nfd.node.kubernetes.io/node-name"
PREFIX = "feature.node.kubernetes.io/"


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


def node_feature(name: str, container: Container, labels: Mapping[str, str], features: Mapping[str, Any]) -> Object:
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
        "spec": {"features": dict(features), "labels": dict(sorted(labels.items()))},
    }


def has_changed(labels: Callable[[], Mapping[str, str]], from_these: Mapping[str, str]) -> Callable[[], bool]:
    """Return a condition: what would be published now is not what was."""
    return lambda: labels() != from_these


async def publish(container: Container, wanted: Object) -> None:
    """Create or update a NodeFeature; one that says the same already is left alone."""
    api, name, namespace = container.simulation.api, wanted["metadata"]["name"], container.namespace
    while True:
        try:
            live = await _read_feature(container, name)
            if live is None:
                await api.create(NODE_FEATURES, wanted, namespace)
            elif not _is_same(live, wanted):
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


async def _read_feature(container: Container, name: str) -> Object | None:
    try:
        return await container.simulation.api.get(NODE_FEATURES, name, container.namespace)
    except ApiError as refusal:
        if refusal.code != NOT_FOUND:
            raise
        return None


def _is_same(live: Object, wanted: Object) -> bool:
    owners = live["metadata"].get("ownerReferences") or []
    return bool(live.get("spec") == wanted["spec"] and owners == wanted["metadata"]["ownerReferences"])


_WORKER_CONFIG = "/etc/kubernetes/node-feature-discovery/nfd-worker.conf"
_FEATURES_D = "/etc/kubernetes/node-feature-discovery/features.d"
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
        labels, features = discover(container, config)
        await publish(container, node_feature(node, container, labels, features))
        await machine.until(has_changed(lambda: discover(container, config)[0], labels))


def _config(container: Container) -> Mapping[str, Any]:
    try:
        parsed = yaml.safe_load(container.files.read(_WORKER_CONFIG))
    except yaml.YAMLError as error:
        container.log(f"failed to parse config file: {error}")
        return {}
    return parsed if isinstance(parsed, dict) else {}


def discover(container: Container, config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the labels and the raw features of a machine, as far as the container's mounts show them."""
    found = {**_system(container), **_kernel(container), **_cpu(), **_local(container)}
    devices = container.machine.pci_devices() if container.files.host_path("/host-sys/bus/pci") else ()
    pci = ((config.get("sources") or {}).get("pci")) or {}
    classes = pci.get("deviceClassWhitelist") or _CLASSES
    shown = [device for device in devices if device.pci_class.startswith(tuple(map(str, classes)))]
    found |= {f"pci-{_name(device, pci.get('deviceLabelFields') or _FIELDS)}.present": "true" for device in shown}
    labels = {name if "/" in name else f"{PREFIX}{name}": value for name, value in found.items()}
    return labels, _features(shown, found)


def _name(device: SimulatedPciDevice, fields: Sequence[str]) -> str:
    values = {"class": device.pci_class, "vendor": device.vendor, "device": device.device}
    return "_".join(values[field] for field in fields if field in values)


def _features(devices: Sequence[SimulatedPciDevice], found: Mapping[str, str]) -> dict[str, Any]:
    elements = [{"attributes": {"class": d.pci_class, "vendor": d.vendor, "device": d.device}} for d in devices]
    kernel = {
        key.removeprefix("kernel-version."): value for key, value in found.items() if key.startswith("kernel-version.")
    }
    release = {
        key.removeprefix("system-os_release."): value
        for key, value in found.items()
        if key.startswith("system-os_release.")
    }
    return {
        "attributes": {"kernel.version": {"elements": kernel}, "system.osrelease": {"elements": release}},
        "flags": {},
        "instances": {"pci.device": {"elements": elements}},
    }


def _system(container: Container) -> dict[str, str]:
    if container.files.host_path("/host-etc/os-release") != "/etc/os-release":
        return {}
    spec = container.machine.spec
    major, _, minor = spec.os_version.partition(".")
    return {
        "system-os_release.ID": spec.os_id,
        "system-os_release.VERSION_ID": spec.os_version,
        "system-os_release.VERSION_ID.major": major,
        **({"system-os_release.VERSION_ID.minor": minor} if minor else {}),
    }


def _kernel(container: Container) -> dict[str, str]:
    full = container.machine.spec.kernel
    major, minor, revision = [*full.split("-")[0].split("."), "0", "0"][:3]
    return {
        "kernel-config.NO_HZ": "true",
        "kernel-config.NO_HZ_IDLE": "true",
        "kernel-version.full": full,
        "kernel-version.major": major,
        "kernel-version.minor": minor,
        "kernel-version.revision": revision,
    }


def _cpu() -> dict[str, str]:
    cpuid = {f"cpu-cpuid.{flag}": "true" for flag in _CPUID}
    return {**cpuid, "cpu-hardware_multithreading": "true", "cpu-model.vendor_id": "Intel"}


def _local(container: Container) -> dict[str, str]:
    """Return what other programs left in features.d, one ``name=value`` on a line."""
    path = container.files.host_path(_FEATURES_D)
    texts = [text for name, text in container.machine.state.files.items() if path and name.startswith(f"{path}/")]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return {name: value for name, _, value in (line.partition("=") for line in lines if line[:1] not in {"", "#"})}


WORKER = Program(_run_worker)

__all__ = ["WORKER", "discover"]

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
    if "-prune" in container.argv or "--prune" in container.argv:
        return await _prune(container)
    try:
        config = yaml.safe_load(container.files.read(_MASTER_CONFIG)) or {}
    except yaml.YAMLError as error:
        container.log(f"failed to parse config file: {error}")
        return 1
    return await _NfdMaster(container, tuple(config.get("extraLabelNs") or ())).run()


async def _prune(container: Container) -> int:
    """Take the labels off every node."""
    nodes, _ = await container.simulation.api.list(NODES)
    for node in nodes:
        patch = label_patch(node, {})
        if patch is not None:
            await container.simulation.api.patch(NODES, node["metadata"]["name"], patch)
    return 0


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
