"""The volumes of a pod: what has to exist before its containers start, and what their files hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.world import World

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
