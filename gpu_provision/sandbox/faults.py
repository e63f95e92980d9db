"""Faults of simulated nodes: declared in the fleet file or, at run time, in a ConfigMap; never coded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpu_provision.sandbox.errors import SandboxProblem

CONFIG_MAP = ("kube-system", "sandbox-faults")
CONFIG_MAP_KEY = "nodes"

KINDS: dict[str, frozenset[str]] = {
    "driver-build-fails": frozenset({"node", "kernel", "message"}),
    "driver-slow": frozenset({"node", "seconds"}),
    "image-pull-fails": frozenset({"node", "image", "message"}),
    "crash-loop": frozenset({"node", "image", "exit_code", "message"}),
    "gpu-missing": frozenset({"node", "count"}),
    "plugin-sees-fewer": frozenset({"node", "count"}),
    "mig-fails": frozenset({"node", "message"}),
    "vectoradd-fails": frozenset({"node", "message"}),
    "nfd-silent": frozenset({"node"}),
    "node-not-ready": frozenset({"node"}),
    "node-reboots": frozenset({"node", "kernel"}),
    "machine-config-fails": frozenset({"node", "message"}),
}
"""Every fault with the settings it takes; ``node`` left out means every node."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """One fault; ``settings`` holds what its kind takes."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def applies_to(self, node: str) -> bool:
        """Return whether the fault is meant for this node."""
        return str(self.settings.get("node", node)) == node

    def get(self, key: str, default: Any = None) -> Any:
        """Return one of the settings."""
        return self.settings.get(key, default)


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """The faults in force at one moment, in the order in which they were declared."""

    all: tuple[NodeFault, ...] = ()

    def find(self, kind: str, node: str) -> NodeFault | None:
        """Return the first fault of this kind for this node."""
        return self.find_for_image(kind, node, "")

    def find_for_image(self, kind: str, node: str, image: str) -> NodeFault | None:
        """Return the first fault of this kind for this node whose ``image``, if any, is part of the image's name."""
        found = (fault for fault in self.all if fault.kind == kind and fault.applies_to(node))
        return next((fault for fault in found if str(fault.get("image", "")) in image), None)


def suggest(word: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """Return the fix for a misspelled word."""
    near = difflib.get_close_matches(word, known, 1, cutoff)
    return f"write {near[0]}" if near else otherwise


def parse_faults(entries: Any, where: str) -> tuple[tuple[NodeFault, ...], tuple[SandboxProblem, ...]]:
    """Return the faults of a list of mappings, and what is wrong with the entries that are none."""
    if not isinstance(entries, list):
        what = "faults are a list of mappings with a key 'fault'"
        return (), (SandboxProblem(code="GP703", what=what, where=where, evidence=repr(entries)[:80]),)
    found = [_parse_fault(entry, f"{where}[{index}]") for index, entry in enumerate(entries)]
    faults = tuple(one for one in found if isinstance(one, NodeFault))
    return faults, tuple(one for one in found if isinstance(one, SandboxProblem))


def _parse_fault(entry: Any, where: str) -> NodeFault | SandboxProblem:
    if not isinstance(entry, dict) or not isinstance(entry.get("fault"), str):
        what = "a fault is a mapping with a key 'fault'"
        return SandboxProblem(code="GP703", what=what, where=where, evidence=repr(entry)[:80])
    settings = dict(entry)
    kind = settings.pop("fault")
    if kind not in KINDS:
        fix = suggest(kind, KINDS, f"one of: {', '.join(sorted(KINDS))}")
        return SandboxProblem(code="GP706", what="there is no such fault", where=where, evidence=kind, fix=fix)
    unknown = min(set(settings) - KINDS[kind], default="")
    if unknown:
        what, fix = f"{kind} has no setting {unknown!r}", f"{kind} takes: {', '.join(sorted(KINDS[kind]))}"
        return SandboxProblem(code="GP702", what=what, where=where, evidence=unknown, fix=fix)
    return NodeFault(kind, settings)


def read_config_map(config_map: Mapping[str, Any] | None) -> tuple[tuple[NodeFault, ...], tuple[SandboxProblem, ...]]:
    """Return the faults that a ConfigMap declares under the key ``nodes``, and its problems."""
    text = ((config_map or {}).get("data") or {}).get(CONFIG_MAP_KEY, "")
    where = f"ConfigMap {'/'.join(CONFIG_MAP)} {CONFIG_MAP_KEY}"
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return (), (SandboxProblem(code="GP701", what="the faults are not YAML", where=where, evidence=str(error)),)
    return parse_faults(entries or [], where)
