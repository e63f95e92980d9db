"""What has to exist before the containers of a pod start: its volumes, its runtime class."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.world import NOT_FOUND, RUNTIME_CLASSES, World


async def handler_of(pod: Mapping[str, Any], world: World) -> str | None:
    """Return the handler that the pod's RuntimeClass names; None if there is no such class."""
    name = pod["spec"].get("runtimeClassName")
    if not name:
        return ""
    try:
        return str((await world.api.get(RUNTIME_CLASSES, name)).get("handler", ""))
    except ApiError as refusal:
        if refusal.code != NOT_FOUND:
            raise
        return None


async def start_sandbox(pod: Mapping[str, Any], machine: Machine, world: World) -> str:
    """Return the pod's IP address once its sandbox runs; report every failure on the way."""
    tries = 0
    while (handler := await handler_of(pod, world)) not in machine.handlers:
        world.events.warning(pod, "FailedCreatePodSandBox", _problem(pod, handler))
        await world.back_off(tries, machine, partial(_configured, machine, handler))
        tries += 1
    return machine.address if pod["spec"].get("hostNetwork") else _address(pod, machine)


def _configured(machine: Machine, handler: str | None) -> bool:
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


class NotMountable(Exception):
    """A volume cannot be mounted yet; the text is the kubelet's."""

    def __init__(self, volume: str, why: str) -> None:
        """Put it in the kubelet's words."""
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {why}')


async def contents_of(pod: Mapping[str, Any], machine: Machine, world: World) -> dict[str, dict[str, str]]:
    """Return the files of every volume that is not of the host. Raises NotMountable."""
    contents: dict[str, dict[str, str]] = {}
    for volume in pod["spec"].get("volumes") or ():
        _check_host_path(volume, machine)
        name, metadata = volume["name"], pod["metadata"]
        if "emptyDir" in volume:
            contents[name] = machine.empty_dir(metadata["uid"], name)
        else:
            contents[name] = await _files(volume, metadata["namespace"], world)
    return contents


async def _files(volume: Mapping[str, Any], namespace: str, world: World) -> dict[str, str]:
    for source, (resource, key) in _BACKED.items():
        if source in volume:
            return await _backed(volume["name"], volume[source], (resource, volume[source][key]), namespace, world)
    files: dict[str, str] = {}
    for source in (volume.get("projected") or {}).get("sources") or ():
        for kind, resource in (("configMap", "configmaps"), ("secret", "secrets")):
            if kind in source:
                found = (resource, source[kind]["name"])
                files |= await _backed(volume["name"], source[kind], found, namespace, world)
    return files


async def _backed(
    volume: str, source: Mapping[str, Any], found: tuple[str, str], namespace: str, world: World
) -> dict[str, str]:
    resource, name = found
    data = await world.data_of(namespace, resource, name)
    if data is None and not source.get("optional"):
        kind = "configmap" if resource == "configmaps" else "secret"
        raise NotMountable(volume, f'{kind} "{name}" not found')
    return _selected(volume, source.get("items"), data or {})


def _selected(volume: str, items: Iterable[Mapping[str, str]] | None, data: Mapping[str, str]) -> dict[str, str]:
    if items is None:
        return {f"/{key}": text for key, text in data.items()}
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing:
        raise NotMountable(volume, f"references non-existent config key: {missing[0]}")
    return {f"/{item['path']}": data[item["key"]] for item in items}


def _check_host_path(volume: Mapping[str, Any], machine: Machine) -> None:
    """Make the directory if the volume asks for it, or complain that it is not there, as a kubelet does."""
    host_path = volume.get("hostPath") or {}
    path, kind = host_path.get("path", ""), host_path.get("type", "")
    if kind == "DirectoryOrCreate":
        machine.make_directory(path)
    if kind == "Directory" and not _is_directory(path, machine):
        raise NotMountable(volume["name"], f"hostPath type check failed: {path} is not a directory")


def _is_directory(path: str, machine: Machine) -> bool:
    # Only what is made at run time can be missing: everything outside /run is taken to be installed.
    return not path.startswith(("/run/", "/var/run/")) or path in _MADE_AT_BOOT or machine.has_directory(path)
