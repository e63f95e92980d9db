"""Generates schema.json: ``python -m gpu_provision.inventory.schema_generator > gpu_provision/inventory/schema.json``.

What a section may hold comes from the declarations of the settings in ``gpu_provision/model``, what a kind of value
looks like from value_types.yaml. Here is what an inventory has besides: its frame. Loading an inventory does not import
this module.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from gpu_provision.model import specs
from gpu_provision.model.hosts import ConnectionMethod, HelperPod, HostPrerequisites, Preflight, SshOptions
from gpu_provision.model.inventory import ClusterConfig, HistorySection, Node, NodePool
from gpu_provision.model.rollout_policy import RolloutPolicy
from gpu_provision.model.settings import REQUIRED, setting, settings_of
from gpu_provision.releases import DEFAULT

Part = dict[str, Any]
_ABBREVIATIONS = frozenset({"ca", "cdi", "dcgm", "gfd", "gpu", "http", "https", "mig", "nfd", "os", "ssh"})
_SCALARS = {bool: "boolean", int: "integer", str: "string"}


@dataclass(frozen=True, kw_only=True)
class PoolSection(NodePool):
    """Nodes that are alike. A pool without `gpu` gets no GPU component."""

    connect: ConnectionMethod = setting(
        ConnectionMethod.SSH, "How hosts of this pool are reached; wins over what the inventory says.", shown=False
    )


@dataclass(frozen=True, kw_only=True)
class InventoryFile:
    """Which nodes have which GPUs, and which software they run."""

    name: str = setting(
        REQUIRED,
        "Names this stack in the cluster: the objects that it applies are members of it. Do not change it later, or "
        "the objects of the old name stay behind.",
        "name",
        examples=["prod"],
    )
    cluster: ClusterConfig = setting(REQUIRED)
    release: str = setting(
        DEFAULT,
        "The set of component versions that all components start from. Any single version can still be set below.",
        minLength=1,
        maxLength=40,
        examples=["26.7.0", "25.10.1"],
    )
    registry: str = setting(
        "",
        "Registry that replaces the registry host of every image of the release: `nvcr.io/nvidia/driver` becomes "
        "`<registry>/nvidia/driver`. A component's own `repository` stays as it is written.",
        "repository",
        examples=["registry.example.com/mirror"],
    )
    image_pull_secrets: tuple[str, ...] = setting((), kind="image_pull_secrets")
    proxy: Mapping[str, str] = setting(
        {},
        "Proxies for all: container runtimes of hosts pull images through them, and the driver container "
        "gets them unless they need credentials. A component's own `env`, and `host_prerequisites.proxy`, win.",
        "proxy",
        shown=False,
    )
    host_prerequisites: HostPrerequisites | None = setting(None)
    preflight: Preflight | None = setting(None)
    connect: ConnectionMethod = setting(
        ConnectionMethod.SSH,
        "How hosts are reached: over SSH, or through the Kubernetes API, with a helper pod on the node and without "
        "any login.",
    )
    helper_pod: HelperPod | None = setting(
        None, "The pod through which hosts with `connect: kubernetes` are reached. It is there while a command runs."
    )
    ssh: SshOptions | None = setting(
        None,
        "How hosts are reached. What is not set here is as your own SSH configuration says. Settings of a node win "
        "over those of the inventory.",
    )
    nfd: specs.NfdSpec | None = setting(None)
    driver: specs.DriverSpec | None = setting(None)
    rollout: RolloutPolicy | None = setting(None)
    history: HistorySection | None = setting(None)
    toolkit: specs.ToolkitSpec | None = setting(None)
    validator: specs.ValidatorSpec | None = setting(
        None,
        "The operator validator, and the image of the vectorAdd pods. It cannot be off: every state is proven before "
        "the run calls it done. `timeout` is also that of the validations.",
    )
    device_plugin: specs.DevicePluginSpec | None = setting(None)
    gfd: specs.GfdSpec | None = setting(None)
    dcgm: specs.DcgmSpec | None = setting(None)
    dcgm_exporter: specs.DcgmExporterSpec | None = setting(None)
    daemonsets: specs.DaemonSetSettings | None = setting(None)
    startup_taint: specs.StartupTaintSpec | None = setting(None)
    cdi: specs.CdiSection | None = setting(None)
    mig: specs.MigSection | None = setting(None)
    operator: specs.OperatorSection | None = setting(None)
    pools: Mapping[str, PoolSection] = setting({}, "Nodes that are alike, by name of the pool.")
    nodes: tuple[Node, ...] = setting(
        (), "The machines. Nodes of the cluster that a pool's node_selector selects need not be listed."
    )


_SHARED = {
    PoolSection: "pool",
    Node: "node",
    specs.DriverSpec: "driver",
    HostPrerequisites: "host_prerequisites",
    SshOptions: "ssh",
}
"""Sections that stand at several places, or whose place is an entry -> their definition."""


def section_type(name: str) -> type[Any]:
    """Return the record that declares the settings of a section of the inventory."""
    kind: type[Any] = get_args(get_type_hints(InventoryFile)[name])[0]
    return kind


@cache
def _kinds() -> Part:
    found: Part = yaml.safe_load(Path(__file__).with_name("value_types.yaml").read_text(encoding="utf-8"))
    return found


def inventory_schema() -> Part:
    """Return the JSON Schema (draft 2020-12) of inventories."""
    definitions = {name: part for name, part in _kinds().items() if "description" in part}
    definitions |= {name: _section(kind) for kind, name in _SHARED.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:gpu-provision:inventory",
        "title": "gpu-provision inventory",
        **_section(InventoryFile),
        "$defs": dict(sorted(definitions.items())),
    }


def _section(record: type[Any]) -> Part:
    """Return the schema of a mapping whose keys are the settings of a record."""
    hints = get_type_hints(record)
    properties: Part = {}
    required: list[str] = []
    for each in settings_of(record):
        if version := each.metadata["image"]:
            properties |= _section(specs.Image)["properties"] | {"version": _reference(version)}
            continue
        properties[each.name] = {"title": _title(each.name), **_setting(hints[each.name], each)}
        required += [each.name] if each.metadata["required"] else []
    found = {"description": _first_paragraph(record), "type": "object", "additionalProperties": False}
    return found | ({"required": required} if required else {}) | {"properties": properties}


def _setting(hint: Any, each: Field[Any]) -> Part:
    kind, description, keywords = (each.metadata[key] for key in ("kind", "description", "keywords"))
    found: Part = _reference(kind) if kind else _of_type(hint)
    found |= {"description": description} if description else {}
    default = each.default if each.default_factory is MISSING else {}  # the only factories make empty mappings
    is_unset = default in (MISSING, None, "") or is_dataclass(default)
    if not (is_unset or each.metadata["required"] or not each.metadata["shown"]):
        found["default"] = list(default) if isinstance(default, tuple) else default
    return {**found, **keywords}


def _of_type(hint: Any) -> Part:
    """Return the schema of a value of a type."""
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if is_dataclass(hint):
        return _reference(_SHARED[hint]) if hint in _SHARED else _section(hint)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        text = _first_paragraph(hint).partition(",")[0].removesuffix(".")
        return {"description": f"{text}.", "type": "string", "enum": [each.value for each in hint]}
    origin, (first, *others) = get_origin(hint), [each for each in get_args(hint) if each is not type(None)]
    if origin is tuple:
        return {"type": "array", "items": _of_type(first)}
    if origin is Mapping:
        names = {key: _kinds()["name"][key] for key in ("pattern", "patternErrorMessage")}
        return {"type": "object", "propertyNames": names, "additionalProperties": _of_type(*others)}
    return {"type": [_SCALARS[each] for each in (first, *others)]} if others else _of_type(first)


def _reference(kind: str) -> Part:
    """Return a reference to a definition, or the kind itself if it only describes values of one sort of setting.

    jsonschema takes longer for a reference.
    """
    own: Part = _kinds().get(kind, {"description": ""})
    return {"$ref": f"#/$defs/{kind}"} if "description" in own else dict(own)


def _title(name: str) -> str:
    """Return a key as an editor shows it: ``DCGM exporter``."""
    first, *rest = (word.upper() if word in _ABBREVIATIONS else word for word in name.split("_"))
    return " ".join((first[0].upper() + first[1:], *rest))


def _first_paragraph(record: type[Any]) -> str:
    return " ".join(str(record.__doc__).partition("\n\n")[0].replace("``", "`").split())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(inventory_schema(), indent=2) + "\n")
