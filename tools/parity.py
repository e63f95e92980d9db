"""``python -m tools.parity`` writes docs/parity.md: what an inventory has of each field of NVIDIA's GPU Operator.

With the CustomResourceDefinitions of another version as arguments, it prints their fields in the form of
``gpu_provision/adopt/reference_fields.yaml`` instead.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gpu_provision.adopt import reference
from gpu_provision.adopt.reference import DRIVER, POLICY, POOL, VALUES, field_names, rows_of, version

PAGE = Path(__file__).parents[1] / "docs" / "parity.md"
KINDS = (POLICY, DRIVER, "GPUCluster", "ComputeDomain", VALUES)
_OPAQUE = frozenset({"nodeAffinity", "podSecurityContext", "resources"})  # Kubernetes' own types
_TITLES = {VALUES: "Values that only the chart has"}
_HEAD = """\
# What an inventory has of the GPU Operator's settings

Each field of NVIDIA's GPU Operator {version}: every leaf of its CustomResourceDefinitions, and the values of its chart
that are in none of them. `make docs` writes this page: the names are facts of the reference
(`gpu_provision/adopt/reference_fields.yaml`), the keys follow from the declarations of the settings, and reasons are
in `gpu_provision/adopt/reference.yaml`. `gpu-provision import` carries over what is here, and names the rest.

- **here**: a key of the inventory, also under another name.
- **partly**: the key lacks something, or another key does part of it.
- **absent**: an inventory has no such setting.
- **not applicable**: deprecated or without effect in the GPU Operator itself, or without a counterpart.

## Totals
"""


class Coverage(StrEnum):
    """What an inventory has of a field."""

    HERE = "here"
    PARTLY = "partly"
    ABSENT = "absent"
    NOT_APPLICABLE = "not applicable"


class FieldCoverage(NamedTuple):
    """A field of the reference, what the inventory has of it, the key, and what is missing."""

    kind: str
    field: str
    status: Coverage
    key: str
    reason: str


def status_of(kind: str, field: str) -> FieldCoverage:
    """Return what the inventory has of a field; an NVIDIADriver has those of the driver in a ClusterPolicy."""
    if kind == DRIVER:
        key = reference.setting_of(reference.policy_field(field))
        row, key = reference.driver_row(field), f"{POOL}{key}" if key else ""
    else:
        row, key = reference.row_of(kind, field), reference.setting_of(field) if kind in {POLICY, VALUES} else ""
    if key or (key := row.key if row.key and reference.has_key(row.key) else ""):
        return FieldCoverage(kind, field, Coverage.PARTLY if row.lacks else Coverage.HERE, key, row.lacks)
    status = Coverage.NOT_APPLICABLE if row.none else Coverage.PARTLY if row.partly else Coverage.ABSENT
    return FieldCoverage(kind, field, status, "", row.reason)


def parity() -> tuple[FieldCoverage, ...]:
    """Return the status of every field of the reference."""
    return tuple(status_of(kind, field) for kind in KINDS for field in field_names(kind))


def page() -> str:
    """Return docs/parity.md: totals, totals per family, and each field."""
    fields = parity()
    parts = [_HEAD.format(version=version()), *_totals("kind", [(each.kind, each) for each in fields])]
    for kind in (POLICY, DRIVER):
        families = [(each.field.partition(".")[0], each) for each in fields if each.kind == kind]
        named = {family for family, each in families if each.field != family}
        rows = [(family if family in named else "(single fields)", each) for family, each in families]
        parts += [f"\n## {kind} by family\n", *_totals("family", sorted(rows, key=lambda row: row[0]))]
    for kind in KINDS:
        parts += [f"\n## {_TITLES.get(kind, kind)}\n", "| field | status | key | note |", "|---|---|---|---|"]
        parts += [_row(each) for each in fields if each.kind == kind]
    return "\n".join(parts) + "\n"


def _totals(title: str, rows: list[tuple[str, FieldCoverage]]) -> Iterator[str]:
    yield f"| {title} | fields | {' | '.join(Coverage)} |"
    yield "|---|---|" + "---|" * len(Coverage)
    groups = dict.fromkeys(name for name, _ in rows)
    for name in groups:
        yield _total(name, [each for group, each in rows if group == name])
    yield _total("**all**", [each for _, each in rows])


def _total(name: str, fields: list[FieldCoverage]) -> str:
    counts = Counter(each.status for each in fields)
    return f"| {name} | {len(fields)} | {' | '.join(str(counts[status]) for status in Coverage)} |"


def _row(each: FieldCoverage) -> str:
    return f"| `{each.field}` | {each.status} | {f'`{each.key}`' if each.key else ''} | {each.reason} |"


def replaced_rows() -> Iterator[str]:
    """Yield the rows of reference.yaml whose fields are all carried by settings of their own names."""
    for kind in (POLICY, DRIVER):
        for name, row in rows_of(kind).items():
            fields = [field for field in field_names(kind) if f"{field}.".startswith(f"{name}.")]
            counts = row.lacks or row.quiet or row.key
            if name and fields and not counts and all(status_of(kind, each).key for each in fields):
                yield f"{kind} {name}"


def field_list(definition: Mapping[str, Any]) -> str:
    """Return the fields of a CustomResourceDefinition's newest version as an entry of reference_fields.yaml."""
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    families: dict[str, list[str]] = {}
    for field in sorted(_leaves(schema, "")):
        family, _, rest = field.partition(".")
        families.setdefault(family, []).extend([rest] if rest else [])
    lines = [f"{definition['spec']['names']['kind']}:"]
    for family, names in families.items():
        quoted = (f"'{name}'" if "[" in name else name for name in names)
        text, indent = f"  {family}: [{', '.join(quoted)}]", " " * (len(family) + 5)
        lines += textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _leaves(part: Mapping[str, Any], path: str) -> Iterator[str]:
    if (properties := part.get("properties")) and path.rpartition(".")[2] not in _OPAQUE:
        for name, below in properties.items():
            yield from _leaves(below, f"{path}.{name}".removeprefix("."))
        return
    yield path
    if path.endswith("runtimeClasses"):
        for name, below in part["items"]["properties"].items():
            yield from _leaves(below, f"{path}[].{name}")


if __name__ == "__main__":
    for definition in sys.argv[1:]:
        sys.stdout.write(field_list(yaml.safe_load(Path(definition).read_text(encoding="utf-8"))) + "\n")
    if not sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
        for row in replaced_rows():
            sys.stderr.write(f"a setting has replaced this row of reference.yaml: {row}\n")
