"""Faults of simulated nodes: declared in the fleet file or, at run time, in a ConfigMap; never coded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpu_provision.sandbox.errors import Problem

CONFIG_MAP = ("kube-system", "sandbox-faults")
CONFIG_MAP_KEY = "nodes"

KINDS: dict[str, frozenset[str]] = {
    "driver-build-fails": frozenset({"node", "kernel", "message"}),
    "driver-slow": frozenset({"node", "seconds"}),
    "image-pull-fails": frozenset({"node", "image", "message"}),
    "crash-loop": frozenset({"node", "image", "exit_code", "message"}),
    "gpu-missing": frozenset({"node", "count"}),
    "plugin-sees-fewer": frozenset({"node", "count"}),
    "vectoradd-fails": frozenset({"node", "message"}),
    "nfd-silent": frozenset({"node"}),
    "node-not-ready": frozenset({"node"}),
    "node-reboots": frozenset({"node", "once"}),
}
"""Every fault with the settings it takes; ``node`` left out means every node."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """One fault; ``settings`` holds what its kind takes."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Equal faults have equal kinds; settings may hold lists."""
        return hash(self.kind)

    def strikes(self, node: str) -> bool:
        """Tell whether the fault is meant for this node."""
        return str(self.settings.get("node", node)) == node

    def get(self, key: str, default: Any = None) -> Any:
        """Return one of the settings."""
        return self.settings.get(key, default)


class NodeFaults:
    """The faults in force at one moment."""

    def __init__(self, faults: Iterable[NodeFault] = ()) -> None:
        """Keep them in the order they were declared."""
        self._faults = tuple(faults)

    def __eq__(self, other: object) -> bool:
        """Tell whether the same faults are in force."""
        return isinstance(other, NodeFaults) and self._faults == other._faults

    def __hash__(self) -> int:
        """Faults are compared, not looked up."""
        return len(self._faults)

    def __iter__(self) -> Iterator[NodeFault]:
        """Yield the faults in order."""
        return iter(self._faults)

    def of(self, kind: str, node: str) -> NodeFault | None:
        """Return the first fault of this kind for this node."""
        return next((fault for fault in self._faults if fault.kind == kind and fault.strikes(node)), None)

    def on_image(self, kind: str, node: str, image: str) -> NodeFault | None:
        """Return the first fault of this kind whose ``image`` is part of the image's name."""
        return next(
            (
                fault
                for fault in self._faults
                if fault.kind == kind and fault.strikes(node) and str(fault.get("image", "")) in image
            ),
            None,
        )


def parse_faults(entries: Any, where: str) -> tuple[tuple[NodeFault, ...], tuple[Problem, ...]]:
    """Return the faults of a list of mappings, and what is wrong with the entries that are none."""
    if not isinstance(entries, list):
        what = "faults are a list of mappings with a key 'fault'"
        return (), (Problem(code="GP703", what=what, where=where, evidence=repr(entries)[:80]),)
    faults: list[NodeFault] = []
    problems: list[Problem] = []
    for index, entry in enumerate(entries):
        problem = _check_fault(entry, f"{where}[{index}]")
        if problem:
            problems.append(problem)
        else:
            faults.append(NodeFault(entry["fault"], {k: v for k, v in entry.items() if k != "fault"}))
    return tuple(faults), tuple(problems)


def _check_fault(entry: Any, where: str) -> Problem | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("fault"), str):
        what = "a fault is a mapping with a key 'fault'"
        return Problem(code="GP703", what=what, where=where, evidence=repr(entry)[:80])
    kind = entry["fault"]
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, 1)
        fix = f"write {near[0]}" if near else f"one of: {', '.join(sorted(KINDS))}"
        return Problem(code="GP706", what="there is no such fault", where=where, evidence=kind, fix=fix)
    unknown = sorted(set(entry) - KINDS[kind] - {"fault"})
    if unknown:
        fix = f"{kind} takes: {', '.join(sorted(KINDS[kind]))}"
        return Problem(
            code="GP702",
            what=f"{kind} has no setting {unknown[0]!r}",
            where=where,
            evidence=unknown[0],
            fix=fix,
        )
    return None


def faults_of_config_map(
    config_map: Mapping[str, Any] | None,
) -> tuple[tuple[NodeFault, ...], tuple[Problem, ...]]:
    """Return the faults that a ConfigMap declares under the key ``nodes``."""
    text = ((config_map or {}).get("data") or {}).get(CONFIG_MAP_KEY, "")
    where = f"ConfigMap {'/'.join(CONFIG_MAP)} {CONFIG_MAP_KEY}"
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return (), (Problem(code="GP701", what="the faults are not YAML", where=where, evidence=str(error)),)
    return parse_faults(entries or [], where)
