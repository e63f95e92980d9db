"""Fleet files: YAML that declares a fleet, with line numbers for what is wrong with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.sandbox.errors import FleetError, SandboxProblem
from gpu_provision.sandbox.faults import parse_faults, suggest
from gpu_provision.sandbox.fleet import Fleet, MachineSpec, OpenShiftSpec, Timings, models
from gpu_provision.sandbox.openshift_releases import RELEASES, OpenShiftRelease
from gpu_provision.sandbox.operand_rules import Mig

KERNELS = {
    "ubuntu20.04": "5.4.0-196-generic",
    "ubuntu22.04": "5.15.0-122-generic",
    "ubuntu24.04": "6.8.0-45-generic",
    "ubuntu26.04": "7.0.0-27-generic",
    "rhel8.10": "4.18.0-553.el8_10.x86_64",
    "rhel9.4": "5.14.0-427.el9.x86_64",
    "rocky9.4": "5.14.0-427.el9.x86_64",
    "debian12": "6.1.0-26-amd64",
}
"""The kernel that a machine runs if the fleet does not say; on arm64, its name says so."""

_MAX_MACHINES = 5000
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def load_fleet(fleet: str | Path = "default", *, speed: float | None = None) -> Fleet:
    """Return the fleet of a file, or a built-in one by name; ``nodes-200`` has 200 GPU nodes, for benchmarks.

    ``speed`` takes the place of the fleet's own. Raises FleetError with all its problems.
    """
    numbered = re.fullmatch(r"nodes-(\d{1,4})", str(fleet))
    found = _gpu_fleet(str(fleet), int(numbered[1])) if numbered else _parse(*_read(fleet))
    return replace(found, timings=replace(found.timings, speed=speed)) if speed else found


def _gpu_fleet(name: str, count: int) -> Fleet:
    """Return a fleet of ``count`` nodes with one Tesla T4 each and one control-plane node, for benchmarks."""
    common = MachineSpec(name="control-1", kernel=KERNELS["ubuntu22.04"])
    gpu, width = replace(common, gpu=models()["Tesla T4"], gpus=1), max(3, len(str(count)))
    machines = (replace(gpu, name=f"gpu-{n:0{width}}") for n in range(1, count + 1))
    return Fleet(name=name, machines=(replace(common, roles=("control-plane",)), *machines), events="problems")


def _read(fleet: str | Path) -> tuple[str, str, str]:
    folder = resources.files(__package__).joinpath("fleets")
    built_in = sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    if str(fleet) in built_in:
        return str(fleet), f"{fleet}.yaml", folder.joinpath(f"{fleet}.yaml").read_text(encoding="utf-8")
    path = Path(fleet)
    try:
        return path.stem, str(path), path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = f"give the path of a fleet file, or one of: {', '.join(built_in)}, nodes-<count>"
        what = "the fleet file cannot be read"
        problem = SandboxProblem(code="GP701", what=what, where=str(path), evidence=str(error), fix=fix)
        raise FleetError(problem) from None


Location = tuple[str | int, ...]
Check = tuple[Callable[[Any], bool], str]


def _locate(node: yaml.Node, path: Location = ()) -> Iterator[tuple[Location, int]]:
    yield path, node.start_mark.line + 1
    children = node.value if isinstance(node, yaml.CollectionNode) else ()
    for index, child in enumerate(children):
        key, value = (child[0].value, child[1]) if isinstance(node, yaml.MappingNode) else (index, child)
        yield from _locate(value, (*path, key))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_count(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int)


def _matches(pattern: str, title: str) -> Check:
    return lambda value: bool(re.match(pattern, str(value))), title


def _all(kind: Callable[[Any], bool], title: str) -> Check:
    def check(value: Any) -> bool:
        return isinstance(value, list | dict) and all(map(kind, value.values() if isinstance(value, dict) else value))

    return check, title


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_taint(value: Any) -> bool:
    return isinstance(value, dict) and _is_text(value.get("key")) and _is_text(value.get("effect"))


_TEXT: Check = (lambda value: _is_text(value) and bool(value), "a string")
_COUNT: Check = (_is_count, "a whole number")
_MAPPING: Check = (lambda value: isinstance(value, dict), "a mapping")
_LIST: Check = (lambda value: isinstance(value, list), "a list")
_FLEET_KEYS: dict[str, Check] = {
    "name": _TEXT,
    "nodes": _LIST,
    "timings": _MAPPING,
    "faults": _LIST,
    "events": _matches("(all|problems)$", "'all' or 'problems'"),
    "openshift": _MAPPING,
}
_OPENSHIFT_KEYS: dict[str, Check] = {
    "version": (lambda value: value in RELEASES, f"one of {', '.join(RELEASES)}"),
    "proxy": _all(_is_text, "a mapping of strings"),
    "trusted_ca": _TEXT,
    "pools": _all(lambda value: bool(_NAME.fullmatch(str(value))), "a list of names"),
}
_NODE_KEYS: dict[str, Check] = {
    "name": _TEXT,
    "count": (lambda value: _is_count(value) and 0 < value <= _MAX_MACHINES, f"1 to {_MAX_MACHINES}"),
    "os": _matches("[a-z]+[0-9][0-9.]*$", "such as ubuntu22.04"),
    "kernel": _TEXT,
    "architecture": _matches("(amd64|arm64)$", "amd64 or arm64"),
    "runtime": _matches(".*://", "such as containerd://1.7.27"),
    "kubelet": _matches(r"v\d+\.\d+\.\d+", "such as v1.34.1"),
    "cpus": _COUNT,
    "memory": _matches(r"\d+[KMGT]i$", "such as 64Gi"),
    "pods": _COUNT,
    "gpu": _MAPPING,
    "labels": _all(_is_text, "a mapping of strings"),
    "taints": _all(_is_taint, "a list of taints"),
    "roles": _all(_is_text, "a list of strings"),
    "host": _MAPPING,
}
_GPU_KEYS: dict[str, Check] = {
    "model": _TEXT,
    "count": (lambda value: _is_count(value) and value > 0, "1 or more"),
    "mig": _matches(r"[1-7]x[1-7]g\.\d+gb$", "the MIG devices of each GPU, such as 7x1g.10gb"),
}
_TIMING_KEYS: dict[str, Check] = {
    **{one.name: (_is_number, "seconds") for one in fields(Timings)},
    "speed": (lambda value: _is_number(value) and value > 0, "a number above 0"),
}


_YamlLoader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""The first takes a tenth of the time, which every command on a sandbox would wait."""


def _parse(name: str, source: str, text: str) -> Fleet:
    try:
        root = yaml.compose(text, Loader=_YamlLoader)
        document = yaml.load(text, Loader=_YamlLoader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        what = f"this is not YAML: {getattr(error, 'problem', None) or error}"
        raise FleetError(SandboxProblem(code="GP701", what=what, where=where)) from None
    reader = _Reader(source, dict(_locate(root)) if root else {})
    fleet = reader.fleet(name, document)
    if reader.problems:
        raise FleetError(*reader.problems)
    return fleet


class _Reader:
    """Reads a fleet from a YAML document and collects what is wrong with it."""

    def __init__(self, source: str, lines: Mapping[Location, int]) -> None:
        self.source, self.lines = source, lines
        self.problems: list[SandboxProblem] = []

    def add_problem(self, code: str, path: Location, what: str, evidence: Any = "", fix: str = "") -> None:
        line = next((self.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.lines), 1)
        where = f"{self.source}:{line} {'.'.join(map(str, path))}".rstrip()
        self.problems.append(SandboxProblem(code=code, what=what, where=where, evidence=str(evidence)[:80], fix=fix))

    def check(self, entry: Any, keys: Mapping[str, Check], path: Location) -> dict[str, Any]:
        """Return the entry's good keys; the others become problems."""
        if not isinstance(entry, dict):
            self.add_problem("GP703", path, "this has to be a mapping", repr(entry))
            return {}
        good: dict[str, Any] = {}
        for key, value in entry.items():
            if key not in keys:
                fix = suggest(str(key), keys, f"known here: {', '.join(sorted(keys))}")
                self.add_problem("GP702", (*path, key), f"there is no key {key!r} here", key, fix)
            elif not keys[key][0](value):
                self.add_problem("GP703", (*path, key), f"expected {keys[key][1]}", repr(value))
            else:
                good[key] = value
        return good

    def fleet(self, name: str, document: Any) -> Fleet:
        good = self.check(document, _FLEET_KEYS, ())
        if not good.get("nodes"):
            self.add_problem("GP703", ("nodes",), "a fleet has at least one node", fix="add nodes: [{name: gpu-1}]")
        openshift = self.openshift(good.get("openshift"))
        release = openshift.release if openshift else None
        entries = enumerate(good.get("nodes", ()))
        machines = [m for i, entry in entries for m in self.machines(entry, ("nodes", i), release)]
        for known, times in Counter(machine.name for machine in machines).items():
            if times > 1:
                self.add_problem("GP705", ("nodes",), f"{times} nodes are called {known}", known)
        faults, problems = parse_faults(good.get("faults", []), f"{self.source} faults")
        self.problems += problems
        return Fleet(
            name=good.get("name", name),
            machines=tuple(machines),
            timings=Timings(**self.check(good.get("timings", {}), _TIMING_KEYS, ("timings",))),
            faults=faults,
            events=good.get("events", "all"),
            source=self.source,
            openshift=openshift,
        )

    def openshift(self, entry: Any) -> OpenShiftSpec | None:
        if entry is None:
            return None
        good = self.check(entry, _OPENSHIFT_KEYS, ("openshift",))
        if "version" not in entry:
            fix = f"add version: {next(iter(RELEASES))}"
            self.add_problem("GP703", ("openshift",), "an OpenShift cluster has a version", fix=fix)
        version = good.pop("version", next(iter(RELEASES)))
        pools = tuple(good.pop("pools", ()))
        return OpenShiftSpec(release=RELEASES[version], pools=pools, **good)

    def machines(self, entry: Any, path: Location, release: OpenShiftRelease | None = None) -> list[MachineSpec]:
        good = self.check(entry, _NODE_KEYS, path)
        gpu, names = good.pop("gpu", {}), self.names(good.pop("name", ""), good.pop("count", None), (*path, "name"))
        if not names:
            return []
        kernel = KERNELS.get(good.get("os", "ubuntu22.04"), "6.1.0-generic")
        if good.get("architecture") == "arm64":
            kernel = kernel.replace("x86_64", "aarch64").replace("amd64", "arm64")
        plain = {key: tuple(value) if isinstance(value, list) else value for key, value in good.items()}
        spec = MachineSpec(name="", **{"kernel": kernel, **plain, **self.gpu(gpu, (*path, "gpu"))})
        if release is not None and "os" not in good:  # a machine with another system is no RHCOS
            own = {key: good[key] for key in ("kernel", "kubelet", "runtime") if key in good}
            spec = replace(spec.on_release(release), roles=_openshift_roles(spec.roles), **own)
        return [replace(spec, name=name) for name in names]

    def names(self, pattern: str, count: int | None, path: Location) -> list[str]:
        """Return the names of the machines of one entry; none if one of them is wrong."""
        names = [pattern]
        if count is not None:
            try:
                names = [pattern.format(n) for n in range(1, count + 1)]
            except (IndexError, KeyError, ValueError):
                names = []
            if len(set(names)) < count:
                self.add_problem("GP703", path, "with count, the name has to number the nodes", pattern, "gpu-{:03}")
                return []
        bad = next((name for name in names if not _NAME.fullmatch(name)), None)
        if bad is not None:
            fix = "use lower case letters, digits, '-' and '.'; with count, a pattern such as gpu-{:03}"
            self.add_problem("GP703", path, "a node's name is a DNS name", repr(bad), fix)
            return []
        return names

    def gpu(self, entry: Any, path: Location) -> dict[str, Any]:
        good = self.check(entry, _GPU_KEYS, path)
        if not good:
            return {}
        name = good.get("model", "")
        if name not in models():
            fix = suggest(name, models(), f"known: {', '.join(models())}", cutoff=0.3)
            self.add_problem("GP704", (*path, "model"), "this GPU model is not known", name, fix)
        return {"gpu": models().get(name), "gpus": good.get("count", 1), "mig": Mig.parse(good.get("mig", ""))}


def _openshift_roles(roles: tuple[str, ...]) -> tuple[str, ...]:
    """Return roles as OpenShift labels nodes: control planes are ``master`` as well, all others ``worker``."""
    added = "master" if "control-plane" in roles else "worker"
    return tuple(dict.fromkeys((*roles, added)))
