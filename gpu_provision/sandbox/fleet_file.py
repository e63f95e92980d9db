"""Reads fleet files: every problem at once, each with its line and what to write instead."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import yaml

from gpu_provision.model.findings import Finding, InvalidInventory
from gpu_provision.sandbox.fleet import KERNELS, MOST_MACHINES, Fleet, MachineSpec, Timings
from gpu_provision.sandbox.gpus import GpuModel, models
from gpu_provision.sandbox.nodes.faults import parse_faults

Path_ = tuple[str | int, ...]


def _parse(text: str, source: str) -> tuple[Any, dict[Path_, int]]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        what = f"this is not YAML: {getattr(error, 'problem', None) or error}"
        raise InvalidInventory(Finding(code="GP701", what=what, where=where)) from None
    return document, dict(_lines(root, ())) if root else {}


def _lines(node: yaml.Node, path: Path_) -> Iterator[tuple[Path_, int]]:
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _lines(value, (*path, str(key.value)))
    if isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*path, index))


Check = tuple[Callable[[Any], bool], str]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _is_taint(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("key"), str) and isinstance(value.get("effect"), str)


_TEXT: Check = (lambda value: isinstance(value, str) and bool(value), "a text")
_COUNT: Check = (_is_count, "a whole number")
_MAPPING: Check = (lambda value: isinstance(value, dict), "a mapping")
_LIST: Check = (lambda value: isinstance(value, list), "a list")

FLEET_KEYS: dict[str, Check] = {
    "name": _TEXT,
    "nodes": _LIST,
    "timings": _MAPPING,
    "faults": _LIST,
    "events": (lambda value: value in {"all", "problems"}, "'all' or 'problems'"),
}
NODE_KEYS: dict[str, Check] = {
    "name": _TEXT,
    "count": (lambda value: _is_count(value) and 0 < value <= MOST_MACHINES, f"1 to {MOST_MACHINES}"),
    "os": (lambda value: bool(re.fullmatch(r"[a-z]+[0-9][0-9.]*", str(value))), "such as ubuntu22.04"),
    "kernel": _TEXT,
    "architecture": (lambda value: value in {"amd64", "arm64"}, "amd64 or arm64"),
    "runtime": (lambda value: "://" in str(value), "such as containerd://1.7.27"),
    "kubelet": (lambda value: bool(re.match(r"v\d+\.\d+\.\d+", str(value))), "such as v1.34.1"),
    "cpus": _COUNT,
    "memory": (lambda value: bool(re.fullmatch(r"\d+[KMGT]i", str(value))), "such as 64Gi"),
    "pods": _COUNT,
    "gpu": _MAPPING,
    "labels": (_is_text_map, "a mapping of texts"),
    "taints": (lambda value: isinstance(value, list) and all(map(_is_taint, value)), "a list of taints"),
    "roles": (
        lambda value: isinstance(value, list) and all(isinstance(r, str) for r in value),
        "a list of texts",
    ),
    "host": _MAPPING,
}
GPU_KEYS: dict[str, Check] = {
    "model": _TEXT,
    "count": (lambda value: _is_count(value) and value > 0, "1 or more"),
}
TIMING_KEYS: dict[str, Check] = {
    "speed": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **{f.name: (_is_number, "seconds") for f in fields(Timings) if f.name != "speed"},
}


def parse_fleet(text: str, *, name: str, source: str) -> Fleet:
    """Return the fleet that a text describes. Raises InvalidInventory with all its findings."""
    document, lines = _parse(text, source)
    builder = _Builder(source, lines)
    built = builder.fleet(name, document)
    if builder.findings:
        raise InvalidInventory(*builder.findings)
    return built


class _Builder:
    """Builds a fleet from a YAML document and collects what is wrong with it."""

    def __init__(self, source: str, lines: Mapping[Path_, int]) -> None:
        self.source, self.lines = source, lines
        self.findings: list[Finding] = []

    def complain(self, code: str, path: Path_, what: str, *, evidence: str = "", fix: str = "") -> None:
        line = next((self.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.lines), 1)
        where = f"{self.source}:{line} {'.'.join(map(str, path))}".rstrip()
        self.findings.append(Finding(code=code, what=what, where=where, evidence=evidence, fix=fix))

    def checked(self, entry: Any, keys: Mapping[str, Check], path: Path_) -> dict[str, Any]:
        """Return the entry's good keys; the others become findings."""
        if not isinstance(entry, dict):
            self.complain("GP703", path, "this has to be a mapping", evidence=repr(entry)[:80])
            return {}
        good: dict[str, Any] = {}
        for key, value in entry.items():
            if key not in keys:
                near = difflib.get_close_matches(str(key), keys, 1)
                fix = f"write {near[0]}" if near else f"known here: {', '.join(sorted(keys))}"
                self.complain("GP702", (*path, key), f"there is no key {key!r} here", evidence=str(key), fix=fix)
            elif not keys[key][0](value):
                self.complain("GP703", (*path, key), f"expected {keys[key][1]}", evidence=repr(value)[:80])
            else:
                good[key] = value
        return good

    def fleet(self, name: str, document: Any) -> Fleet:
        good = self.checked(document, FLEET_KEYS, ())
        if not good.get("nodes"):
            self.complain("GP703", ("nodes",), "a fleet has at least one node", fix="add nodes: [{name: gpu-1}]")
        machines = [m for i, entry in enumerate(good.get("nodes", [])) for m in self.machines(entry, ("nodes", i))]
        self.refuse_duplicates(machines)
        faults, findings = parse_faults(good.get("faults", []), f"{self.source} faults")
        self.findings += findings
        return Fleet(
            name=good.get("name", name),
            machines=tuple(machines),
            timings=Timings(**self.checked(good.get("timings", {}), TIMING_KEYS, ("timings",))),
            faults=faults,
            events=good.get("events", "all"),
            source=self.source,
        )

    def machines(self, entry: Any, path: Path_) -> list[MachineSpec]:
        good = self.checked(entry, NODE_KEYS, path)
        pattern = good.get("name", "")
        count = good.pop("count", None)
        names = [pattern] if count is None else self.names(pattern, count, path)
        bad = next((name for name in names if not _NAME.fullmatch(name)), None)
        if bad is not None:
            fix = "use lower case letters, digits, '-' and '.'; with count, a pattern such as gpu-{:03}"
            self.complain("GP703", (*path, "name"), "a node's name is a DNS name", evidence=repr(bad), fix=fix)
            return []
        spec = self.machine(good, path)
        return [replace(spec, name=name) for name in names]

    def names(self, pattern: str, count: int, path: Path_) -> list[str]:
        try:
            names = [pattern.format(n) for n in range(1, count + 1)]
        except (IndexError, KeyError, ValueError):
            names = []
        if len(set(names)) == count:
            return names
        self.complain(
            "GP703",
            (*path, "name"),
            "with count, the name has to number the nodes",
            evidence=pattern,
            fix="gpu-{:03}",
        )
        return []

    def machine(self, good: dict[str, Any], path: Path_) -> MachineSpec:
        gpu = self.checked(good.pop("gpu", {}), GPU_KEYS, (*path, "gpu"))
        os = good.get("os", "ubuntu22.04")
        plain = {key: good[key] for key in good if key not in {"taints", "roles"}}
        return MachineSpec(
            **{"name": "", "kernel": KERNELS.get(os, "6.1.0-generic"), **plain},
            gpu=self.model(gpu, path),
            gpus=gpu.get("count", 1) if gpu else 0,
            taints=tuple(good.get("taints", ())),
            roles=tuple(good.get("roles", ())),
        )

    def model(self, gpu: Mapping[str, Any], path: Path_) -> GpuModel | None:
        if not gpu:
            return None
        name = gpu.get("model", "")
        if name not in models():
            near = difflib.get_close_matches(name, models(), 1, cutoff=0.3)
            fix = f"write {near[0]}" if near else f"known: {', '.join(models())}"
            self.complain("GP704", (*path, "gpu", "model"), "this GPU model is not known", evidence=name, fix=fix)
        return models().get(name)

    def refuse_duplicates(self, machines: list[MachineSpec]) -> None:
        for name, times in Counter(m.name for m in machines).items():
            if times > 1:
                self.complain("GP705", ("nodes",), f"{times} nodes are called {name}", evidence=name)
