"""What a user has set in the GPU Operator, from its chart's values, resources or a cluster, in one form. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.adopt.reference import policy_path

EMPTY_VALUES: tuple[Any, ...] = (None, "", {}, [])

Path = tuple[str, ...]
Locate = Callable[[Path], str]
"""Returns the place of a field as its source names it: ``values.yaml:12 driver.env``."""


@dataclass(kw_only=True)
class OperatorSettings:
    """Fields of a ClusterPolicy, as its spec has them.

    Values of the chart and an NVIDIADriver have the names of a ClusterPolicy here; what a ClusterPolicy does not have
    keeps its place: ``nfd.enabled``, and ``driver.nodeSelector`` of an NVIDIADriver.
    """

    kind: str  # of the source: ClusterPolicy, NVIDIADriver or values
    name: str = ""  # of a resource
    namespace: str = ""  # of the operator, as far as the source tells
    version_texts: tuple[str, ...] = ()  # texts that may have the chart's version
    spec: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)  # of each field and each section
    drivers: list[OperatorSettings] = field(default_factory=list)  # NVIDIADriver resources

    def add(self, fields: Iterable[tuple[Path, Any]], locate: Locate) -> None:
        """Set fields of a source; as with Helm, a later source wins, and null means: not set."""
        for path, value in fields:
            target = policy_path(self.kind, path)
            put_value(self.spec, target, value)
            for above in range(min(len(path), len(target))):
                self.places[target[: len(target) - above]] = locate(path[: len(path) - above])

    def where(self, path: Path) -> str:
        """Return the place of a field, or of the nearest section around it."""
        lengths = range(len(path), 0, -1)
        return next((self.places[path[:length]] for length in lengths if path[:length] in self.places), "")


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path and value of each leaf of nested mappings; lists and empty mappings are leaves."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from leaves(below, (*path, str(key)))
    elif path:
        yield path, value


def value_at(spec: Any, field: str) -> Any:
    """Return the value of a field such as ``driver.env``; None without it."""
    for step in field.split("."):
        spec = spec.get(step) if isinstance(spec, Mapping) else None
    return spec


def is_env(value: Any) -> bool:
    """Whether a value is a list of variables as the GPU Operator has them: each with a name and a value."""
    return isinstance(value, list) and all(isinstance(entry, dict) and _is_variable(entry) for entry in value)


def _is_variable(entry: Mapping[str, Any]) -> bool:
    has_value = not isinstance(entry.get("value"), (dict, list))
    return has_value and isinstance(entry.get("name"), str) and entry.keys() <= {"name", "value"}


def put_value(spec: dict[str, Any], path: Path, value: Any) -> None:
    """Set a field of nested mappings; an empty mapping changes nothing that is there."""
    *parents, last = path
    for step in parents:
        below = spec.get(step)
        if not isinstance(below, dict):
            below = spec[step] = {}
        spec = below
    if value != {} or not isinstance(spec.get(last), dict):
        spec[last] = value


def settings_of_resource(
    kind: str, metadata: Mapping[str, Any], fields: Iterable[tuple[Path, Any]], locate: Locate
) -> OperatorSettings:
    """Return the settings of a ClusterPolicy or an NVIDIADriver with these fields in its spec."""
    found = OperatorSettings(
        kind=kind,
        name=str(metadata.get("name", "")),
        namespace=_text_at(metadata, "annotations", "meta.helm.sh/release-namespace"),
        version_texts=(_text_at(metadata, "labels", "helm.sh/chart"),),
    )
    found.add(fields, locate)
    return found


def _text_at(value: Any, *steps: str) -> str:
    for step in steps:
        value = value.get(step) if isinstance(value, Mapping) else None
    return str(value or "")
