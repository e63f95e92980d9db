"""What a kubelet checks and prepares before containers start: admission, volumes, runtime class, address."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from gpu_provision.sandbox.api import RUNTIME_CLASSES
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.node import GPU_RESOURCE
from gpu_provision.sandbox.kubelet.simulation import Simulation

_ENDED = {"Succeeded", "Failed"}


def requested_gpus(container: Mapping[str, Any]) -> int:
    """Return how many GPUs a container's limits ask for."""
    return int(((container.get("resources") or {}).get("limits") or {}).get(GPU_RESOURCE, 0))


def check_admission(pod: Mapping[str, Any], machine: Machine, pods: Informer) -> str:
    """Return ``Reason: message`` if the machine does not take the pod; empty if it does, with its devices granted."""
    others = sum(
        1
        for other in pods.by("node", machine.name)
        if (other.get("status") or {}).get("phase") not in _ENDED and other["metadata"]["uid"] != pod["metadata"]["uid"]
    )
    if others >= machine.spec.pods:
        return (
            f"OutOfpods: Node didn't have enough resource: pods, requested: 1, used: {others}, "
            f"capacity: {machine.spec.pods}"
        )
    return _grant(pod, machine)


def _grant(pod: Mapping[str, Any], machine: Machine) -> str:
    if machine.state.devices is None:
        return ""  # no plugin ever registered: a kubelet does not know the resource and ignores the request
    spec = pod["spec"]
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        count = requested_gpus(container)
        if count and not machine.grant(f"{pod['metadata']['uid']}/{container['name']}", count):
            machine.release(pod["metadata"]["uid"])
            held = sum(map(len, machine.state.granted.values()))
            return (
                f"UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for "
                f"{GPU_RESOURCE}. Requested: {count}, Available: {(machine.state.devices or 0) - held}, "
                "which is unexpected"
            )
    return ""


async def read_handler(pod: Mapping[str, Any], simulation: Simulation) -> str | None:
    """Return the handler that the pod's RuntimeClass names; None if there is no such class."""
    name = pod["spec"].get("runtimeClassName")
    if not name:
        return ""
    found = await simulation.find(RUNTIME_CLASSES, name)
    return None if found is None else str(found.get("handler", ""))


async def start_sandbox(pod: Mapping[str, Any], machine: Machine, simulation: Simulation) -> str:
    """Return the pod's IP address once its sandbox runs; report every failure on the way."""
    tries = 0
    while (handler := await read_handler(pod, simulation)) not in machine.handlers:
        simulation.events.warning(pod, "FailedCreatePodSandBox", _problem(pod, handler))
        await simulation.back_off(tries, machine, partial(_has_handler, machine, handler))
        tries += 1
    return machine.address if pod["spec"].get("hostNetwork") else _address(pod, machine)


def _has_handler(machine: Machine, handler: str | None) -> bool:
    return handler in machine.handlers


def _problem(pod: Mapping[str, Any], handler: str | None) -> str:
    if handler is None:
        return (
            "Failed to create pod sandbox: failed to get RuntimeClass "
            f'"{pod["spec"]["runtimeClassName"]}": runtimeclass.node.k8s.io not found'
        )
    return (
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: "
        f'no runtime for "{handler}" is configured'
    )


def _address(pod: Mapping[str, Any], machine: Machine) -> str:
    """Return an address in the machine's own range, always the same for the same pod."""
    third = zlib.crc32(machine.name.encode()) % 256
    return f"10.244.{third}.{zlib.crc32(pod['metadata']['uid'].encode()) % 250 + 2}"


_BACKED = {"configMap": ("configmaps", "name"), "secret": ("secrets", "secretName")}
_MADE_AT_BOOT = ("/run/containerd", "/run/systemd", "/run/udev", "/run/lock", "/run/crio", "/run/docker.sock")


class MountError(Exception):
    """A volume cannot be mounted yet; the text is the kubelet's."""

    def __init__(self, volume: str, why: str) -> None:
        """Put it in the kubelet's words."""
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {why}')


async def read_volumes(pod: Mapping[str, Any], machine: Machine, simulation: Simulation) -> dict[str, dict[str, str]]:
    """Return the files of every volume that is not of the host. Raises NotMountable."""
    contents: dict[str, dict[str, str]] = {}
    for volume in pod["spec"].get("volumes") or ():
        _check_host_path(volume, machine)
        name, metadata = volume["name"], pod["metadata"]
        if "emptyDir" in volume:
            contents[name] = machine.empty_dir(metadata["uid"], name)
        else:
            contents[name] = await _files(volume, metadata["namespace"], simulation)
    return contents


async def _files(volume: Mapping[str, Any], namespace: str, simulation: Simulation) -> dict[str, str]:
    for source, (resource, key) in _BACKED.items():
        if source in volume:
            return await _read_source(
                volume["name"], volume[source], (resource, volume[source][key]), namespace, simulation
            )
    return {}


async def _read_source(
    volume: str, source: Mapping[str, Any], found: tuple[str, str], namespace: str, simulation: Simulation
) -> dict[str, str]:
    resource, name = found
    data = await simulation.data_of(namespace, resource, name)
    if data is None and not source.get("optional"):
        kind = "configmap" if resource == "configmaps" else "secret"
        raise MountError(volume, f'{kind} "{name}" not found')
    return _select_items(volume, source.get("items"), data or {})


def _select_items(volume: str, items: Iterable[Mapping[str, str]] | None, data: Mapping[str, str]) -> dict[str, str]:
    if items is None:
        return {f"/{key}": text for key, text in data.items()}
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing:
        raise MountError(volume, f"references non-existent config key: {missing[0]}")
    return {f"/{item['path']}": data[item["key"]] for item in items}


def _check_host_path(volume: Mapping[str, Any], machine: Machine) -> None:
    """Make the directory if the volume asks for it, or complain that it is not there, as a kubelet does."""
    host_path = volume.get("hostPath") or {}
    path, kind = host_path.get("path", ""), host_path.get("type", "")
    if kind == "DirectoryOrCreate":
        machine.make_directory(path)
    if kind == "Directory" and not _is_directory(path, machine):
        raise MountError(volume["name"], f"hostPath type check failed: {path} is not a directory")


def _is_directory(path: str, machine: Machine) -> bool:
    # Only what is made at run time can be missing: everything outside /run is taken to be installed.
    return not path.startswith(("/run/", "/var/run/")) or path in _MADE_AT_BOOT or machine.has_directory(path)
