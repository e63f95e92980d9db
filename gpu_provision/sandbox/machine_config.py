"""MachineConfigs: which pool a node is in, how a pool's configuration is rendered, and what that changes on a machine.

The rules are those of openshift/machine-config-operator: a node is in one pool (the custom one, else master, else
worker); configurations merge in the order of their names, those of the role ``worker`` first.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import ApiResource, Object

_GROUP = "machineconfiguration.openshift.io"
MACHINE_CONFIGS = ApiResource(_GROUP, "v1", "machineconfigs")
POOLS = ApiResource(_GROUP, "v1", "machineconfigpools")
ROLE = f"{_GROUP}/role"
CURRENT, DESIRED = f"{_GROUP}/currentConfig", f"{_GROUP}/desiredConfig"
STATE, REASON = f"{_GROUP}/state", f"{_GROUP}/reason"
DESIRED_DRAIN, APPLIED_DRAIN = f"{_GROUP}/desiredDrain", f"{_GROUP}/lastAppliedDrain"
DONE, WORKING, DEGRADED = "Done", "Working", "Degraded"
CONTROLLER_VERSION = f"{_GROUP}/generated-by-controller-version"
_MASTER, _WORKER = "master", "worker"
_IGNITION, _KNOWN = re.compile(r"3\.[0-5]\.\d+"), "2.2, 3.0, 3.1, 3.2, 3.3, 3.4, 3.5"
_BLOCKED = re.compile(r"(?m)^\s*(?:blacklist\s+(\S+)|install\s+(\S+)\s+/bin/(?:false|true))")
_BLOCKING_ARGUMENTS = {"modprobe.blacklist", "rd.driver.blacklist", "module_blacklist"}


class RenderError(Exception):
    """A pool's MachineConfigs cannot be rendered; the text is the condition's."""


class IgnitionError(RenderError):
    """Ignition cannot read the configuration of a MachineConfig."""

    def __init__(self, why: str, name: str) -> None:
        """Put it in the operator's words, with the name of the MachineConfig."""
        super().__init__(f"parsing Ignition config failed: {why}: {name}")


def primary_pool(node: Object, pools: Iterable[Object]) -> Object | None:
    """Return the pool that a node is in. Raises RenderError if it has several custom roles."""
    selected = {
        objects.name(pool): pool
        for pool in pools
        if objects.matches_selector(pool["spec"].get("nodeSelector"), objects.labels(node))
    }
    master, worker = selected.pop(_MASTER, None), selected.pop(_WORKER, None)
    if master is not None:
        return master
    if len(selected) > 1:
        why = f"node {objects.name(node)} belongs to {len(selected)} custom roles, cannot proceed with this Node"
        raise RenderError(why)
    return next(iter(selected.values()), worker)


def select_configs(pool: Object, configs: Iterable[Object]) -> list[Object]:
    """Return the MachineConfigs of a pool in the order in which they merge; rendered ones are no source."""
    selector = pool["spec"].get("machineConfigSelector")
    chosen = (each for each in configs if objects.matches_selector(selector, objects.labels(each)))
    return sorted(
        (each for each in chosen if not objects.controller_of(each)),
        key=lambda each: (objects.labels(each).get(ROLE) != _WORKER, objects.name(each)),
    )


def render(pool: Object, sources: Sequence[Object], version: str) -> Object:
    """Return the rendered MachineConfig of a pool. Raises RenderError."""
    if not sources:
        why = f"no MachineConfigs found matching selector {pool['spec'].get('machineConfigSelector')}"
        raise RenderError(why)
    specs = [source.get("spec") or {} for source in sources]
    files: dict[str, Object] = {}
    units: dict[str, Object] = {}
    for source, spec in zip(sources, specs, strict=True):
        ignition = spec.get("config") or {}
        _check_ignition(objects.name(source), ignition)
        files |= {each["path"]: each for each in objects.value_at(ignition, "storage", "files") or ()}
        units |= {each["name"]: each for each in objects.value_at(ignition, "systemd", "units") or ()}
    merged: Object = {"ignition": {"version": "3.5.0"}}
    merged |= {"storage": {"files": [{"overwrite": True, **files[path]} for path in sorted(files)]}} if files else {}
    merged |= {"systemd": {"units": [units[name] for name in sorted(units)]}} if units else {}
    kernel_types = [spec["kernelType"] for spec in specs if spec.get("kernelType", "default") != "default"]
    spec = {
        "config": merged,
        "extensions": [name for each in specs for name in each.get("extensions") or ()],
        "fips": any(each.get("fips") for each in specs),
        "kernelArguments": [argument for each in specs for argument in each.get("kernelArguments") or ()],
        "kernelType": kernel_types[-1] if kernel_types else "default",
        "osImageURL": next((each["osImageURL"] for each in reversed(specs) if each.get("osImageURL")), ""),
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:32]
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "MachineConfig",
        "metadata": {
            "name": f"rendered-{objects.name(pool)}-{digest}",
            "annotations": {CONTROLLER_VERSION: version},
            "ownerReferences": [objects.controller_ref(pool)],
        },
        "spec": spec,
    }


def _check_ignition(name: str, ignition: Object) -> None:
    """Raise RenderError for a configuration that Ignition cannot read; an empty one changes nothing."""
    if not ignition:
        return
    version = str(objects.value_at(ignition, "ignition", "version") or "")
    if not _IGNITION.fullmatch(version):
        why = f"unknown version. Supported spec versions: {_KNOWN}"
        raise IgnitionError(why, name)
    for file in objects.value_at(ignition, "storage", "files") or ():
        if not str(file.get("path", "")).startswith("/"):
            why = "path not absolute"
            raise IgnitionError(why, name)
        try:
            read_file(file)
        except ValueError as error:
            why = f"invalid url {str(error)[:80]!r}"
            raise IgnitionError(why, name) from error


def read_file(file: Object) -> str:
    """Return the text of a file in an Ignition configuration, which is a data URL. Raises ValueError."""
    contents = file.get("contents") or {}
    source = str(contents.get("source") or "data:,")
    scheme, _, rest = source.partition(":")
    kind, comma, data = rest.partition(",")
    if scheme != "data" or not comma:
        raise ValueError(source)
    raw = base64.b64decode(data, validate=True) if kind.endswith(";base64") else unquote_to_bytes(data)
    if contents.get("compression") == "gzip":
        raw = gzip.decompress(raw)
    return raw.decode()


class Effects(NamedTuple):
    """What a rendered configuration changes on a machine at its next boot, as far as drivers depend on it."""

    os_image_url: str
    blocked_modules: list[str]
    loaded_modules: list[str]


def read_effects(rendered: Object) -> Effects:
    """Return the effects of a rendered MachineConfig."""
    spec: dict[str, Any] = rendered["spec"]
    blocked: dict[str, None] = {}
    loaded: dict[str, None] = {}
    for file in objects.value_at(spec, "config", "storage", "files") or ():
        folder, text = str(file["path"]).rpartition("/")[0], read_file(file)
        if folder == "/etc/modprobe.d":
            blocked |= {left or right: None for left, right in _BLOCKED.findall(text)}
        elif folder == "/etc/modules-load.d":
            lines = (line.strip() for line in text.splitlines())
            loaded |= {line: None for line in lines if line and not line.startswith(("#", ";"))}
    for argument in spec.get("kernelArguments") or ():
        key, _, value = argument.partition("=")
        if key in _BLOCKING_ARGUMENTS:
            blocked |= dict.fromkeys(value.split(","))
    return Effects(spec.get("osImageURL", ""), list(blocked), list(loaded))
