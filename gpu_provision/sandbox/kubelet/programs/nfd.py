"""Node Feature Discovery: the worker publishes NodeFeatures, the master turns them into node labels."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gpu_provision.sandbox import objects, operand_rules
from gpu_provision.sandbox.api import CONFLICT, NODE_FEATURES, NODES, NOT_FOUND, ApiError, Object
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.container import Container, Program

_WORKER_CONFIG = "/etc/kubernetes/node-feature-discovery/nfd-worker.conf"
_MASTER_CONFIG = "/etc/kubernetes/node-feature-discovery/nfd-master.conf"
_CPUID = ("ADX", "AESNI", "AVX", "AVX2", "FMA3")
_GC_INTERVAL = 60.0
_DOWNSTREAM = ("ose-node-feature-discovery", "origin-node-feature-discovery")
_DOWNSTREAM_FIELDS = ("OSTREE_VERSION", "RHEL_VERSION", "OPENSHIFT_VERSION")
_RANGE = re.compile(r"\{\{-?\s*range \.system\.osrelease\s*-?\}\}(.*?)\{\{-?\s*end\s*-?\}\}", re.DOTALL)


async def publish(container: Container, name: str, labels: Mapping[str, str]) -> None:
    """Create or update the NodeFeature of a container's node; one that says the same already is left alone."""
    api, namespace = container.simulation.api, container.namespace
    wanted = operand_rules.node_feature(name, container.pod, container.machine.name, labels)
    while True:
        try:
            live = await api.find(NODE_FEATURES, name, namespace)
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


async def _run_worker(container: Container) -> int:
    node = container.env.get("NODE_NAME", "")
    if not node:
        container.log("unable to get node name: environment variable NODE_NAME is not set")
        return 1
    try:
        config = yaml.safe_load(container.files.read(_WORKER_CONFIG))
    except yaml.YAMLError as error:
        container.log(f"failed to parse config file: {error}")
        config = {}
    config = config if isinstance(config, dict) else {}
    container.log("Node Feature Discovery Worker", f'configuration file "{_WORKER_CONFIG}" parsed')
    container.report_started()
    machine = container.machine
    while True:
        await machine.wait_until(lambda: machine.faults.find("nfd-silent", machine.name) is None)
        labels = discover(container, config)
        await publish(container, node, labels)
        await machine.wait_until(lambda labels=labels: discover(container, config) != labels)  # type: ignore[misc]


def discover(container: Container, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a machine, as far as the container's mounts show it."""
    spec, files = container.machine.spec, container.files
    found = {
        **{f"cpu-cpuid.{flag}": "true" for flag in _CPUID},
        "cpu-hardware_multithreading": "true",
        "cpu-model.vendor_id": "Intel",
        "kernel-config.NO_HZ": "true",
        "kernel-config.NO_HZ_IDLE": "true",
        **operand_rules.kernel_labels(spec.kernel),
    }
    if files.host_path("/host-etc/os-release") == "/etc/os-release":
        found |= operand_rules.os_labels(spec.os_id, spec.os_version)
        found |= _openshift_labels(container, config)
    if files.host_path("/host-sys/bus/pci"):
        found |= operand_rules.pci_labels(container.machine.pci_devices(), config)
    return found


def _openshift_labels(container: Container, config: Mapping[str, Any]) -> dict[str, str]:
    """Return labels of the fields that /etc/os-release of RHCOS has besides.

    The worker of OpenShift's own build has three of them; the upstream one has what rules of its configuration say.
    """
    release = container.machine.spec.release
    fields = release.os_release() if release else {}
    is_downstream = container.image_name.startswith(_DOWNSTREAM)
    found = {f"system-os_release.{key}": fields[key] for key in _DOWNSTREAM_FIELDS if is_downstream and key in fields}
    for rule in (config.get("sources") or {}).get("custom") or ():
        terms = [term for term in rule.get("matchFeatures") or () if term.get("feature") == "system.osrelease"]
        names = [name for term in terms for name in term.get("matchExpressions") or {}]
        if names and set(names) <= set(fields):
            template = _RANGE.fullmatch(str(rule.get("labelsTemplate", "")).strip())
            lines = (template[1] if template else "").strip()
            made = (_fill(lines, name, fields[name]).partition("=") for name in names) if lines else ()
            found |= {key: value for key, _, value in made} | dict(rule.get("labels") or {})
    return found


def _fill(line: str, name: str, value: str) -> str:
    return re.sub(r"\{\{\s*\.Value\s*\}\}", value, re.sub(r"\{\{\s*\.Name\s*\}\}", name, line))


class _NfdMaster:
    """Follows NodeFeatures and labels the nodes they are about."""

    def __init__(self, container: Container, extra_namespaces: Sequence[str]) -> None:
        self._container, self._extra = container, extra_namespaces
        self._api = container.simulation.api
        self._informer = Informer(self._api, NODE_FEATURES)
        self._informer.index("node", operand_rules.node_names)
        self._dirty: dict[str, None] = {}
        self._work = asyncio.Event()

    def _on_change(self, before: Object | None, after: Object | None) -> None:
        for feature in (before, after):
            self._dirty.update(dict.fromkeys(operand_rules.node_names(feature) if feature else ()))
        self._work.set()

    async def run(self) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            await self._informer.wait_for_sync()
            nodes, _ = await self._api.list(NODES)  # also those without a NodeFeature may have labels from one
            self._dirty.update(dict.fromkeys(map(objects.name, nodes)))
            self._work.set()
            self._informer.on_change(self._on_change)
            self._container.report_started()
            while True:
                await self._work.wait()
                self._work.clear()
                while self._dirty:
                    name = next(iter(self._dirty))
                    del self._dirty[name]
                    await self._label(name)

    async def _label(self, name: str) -> None:
        try:
            node = await self._api.get(NODES, name)
            labels = operand_rules.node_labels(self._informer.by_index("node", name), self._extra)
            patch = operand_rules.label_patch(node, labels)
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
    container.report_started()
    api = container.simulation.api
    while True:
        try:
            names = set(map(objects.name, (await api.list(NODES))[0]))
            for feature in (await api.list(NODE_FEATURES))[0]:
                if not set(operand_rules.node_names(feature)) <= names:
                    await api.delete(NODE_FEATURES, objects.name(feature), objects.namespace(feature))
        except (ApiError, OSError) as problem:
            container.log(f"garbage collection failed: {problem}")
        await container.sleep(_GC_INTERVAL)


WORKER = Program(_run_worker)
MASTER = Program(_run_master)
GARBAGE_COLLECTOR = Program(_run_collector)
