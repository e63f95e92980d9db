"""Drift as text: what was changed behind our back first, with who did it; one line if there is nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_provision.model.plan import (
    Action,
    Difference,
    Drift,
    FieldDrift,
    Origin,
)
from gpu_provision.output.findings import plain
from gpu_provision.output.object_text import HIDDEN, display_value, field_value, is_secret
from gpu_provision.output.plan import resource, resource_document
from gpu_provision.output.status import not_installed
from gpu_provision.output.text import PLAIN, Style, counted, grouped, indented, ranges

_TITLES = {
    Origin.DRIFT: ("changed since it was applied", "red"),
    Origin.EITHER: ("changed since it was applied, or not applied yet: nothing tells", "yellow"),
    Origin.PENDING: ("declared and not applied yet", "cyan"),
    Origin.NOT_READY: ("as declared, but not ready", "yellow"),
}
_COUNTED = {
    Origin.DRIFT: "changed since applied",
    Origin.EITHER: "changed or not applied",
    Origin.PENDING: "not applied yet",
    Origin.NOT_READY: "not ready",
}
_WHAT = {
    Action.CREATE: "is not there",
    Action.DELETE: "is not wanted",
    Action.RUN: "has not passed",
}


def text(drift: Drift, style: Style = PLAIN, *, hosts: str = "", changed_hosts: int = 0) -> str:
    """Return what differs. ``hosts`` is the text of the hosts that differ; nothing of hosts that do not."""
    if not changed_hosts and not (drift.differences and drift.installed):
        return closing(drift)
    head = f"Inventory {drift.inventory}, release {drift.release}, cluster {drift.cluster}"
    blocks = [_block(drift, origin, style) for origin in _TITLES] if drift.installed else []
    body = [style.bold(head), *blocks]
    if changed_hosts:
        body.append(f"{style.bold('hosts that are not as declared')}\n{indented(hosts)}")
    body.append(resource(drift.resource, style))
    return "\n\n".join(filter(None, [*body, style.bold(closing(drift, hosts=changed_hosts))]))


def closing(drift: Drift, *, hosts: int = 0) -> str:
    """Return the one sentence with the counts."""
    counts = Counter(origin for origin, _ in {(each.origin, each.ref) for each in drift.differences})
    told = [f"{counts[origin]} {words}" for origin, words in _COUNTED.items() if counts[origin] and drift.installed]
    told += [f"{counted(hosts, 'host')} not as declared"] if hosts else []
    head = "" if drift.installed else f"{not_installed(drift.inventory, drift.cluster)} "
    if told:
        return f"{head}Drift: {', '.join(told)}. Nothing was changed."
    return head.strip() or f"No drift: everything is as inventory {drift.inventory} declares."


def _block(drift: Drift, origin: Origin, style: Style) -> str:
    found = drift.of(origin)
    if not found:
        return ""
    title, color = _TITLES[origin]
    lines = [line for group in grouped(found, lambda each: (each.ref, each.action)).values() for line in _lines(group)]
    return "\n".join([style.paint(color, title), *(f"  {line}" for line in lines)])


def _lines(group: Sequence[Difference]) -> Iterator[str]:
    first = group[0]
    yield " ".join(filter(None, (str(first.ref), _WHAT.get(first.action, "")))) + f"  ({first.component})"
    for each in group:
        where = f"{ranges(each.nodes)}: " if each.nodes else ""
        yield from (f"  {_field(each, field)}" for field in each.fields)
        yield from (f"  {where}{note}" for note in each.notes)


def _field(each: Difference, field: FieldDrift) -> str:
    by = f"  by {field.writer}" if field.writer else ""
    also = f"  ({_COUNTED[field.origin]})" if field.origin is not each.origin else ""
    if is_secret(each.ref.kind, field.path):
        return f"{field.path}: {HIDDEN}{by}{also}"
    found, declared = (
        display_value(field_value(each.ref.kind, field.path, one)) for one in (field.found, field.declared)
    )
    return f"{field.path}: {found} instead of {declared}{by}{also}"


def document(drift: Drift) -> dict[str, Any]:
    """Return the drift's own parts of its JSON document."""
    counts = Counter(each.origin for each in drift.differences)
    return {
        "inventory": drift.inventory,
        "release": drift.release,
        "cluster": drift.cluster,
        "applied": drift.applied,
        "installed": drift.installed,
        "resource": resource_document(drift.resource),
        "differences": [_difference(each) for each in drift.differences],
        "summary": {origin.value: counts[origin] for origin in Origin},
    }


def _difference(each: Difference) -> dict[str, Any]:
    document = {**plain(each), "fields": [_field_document(each, field) for field in each.fields]}
    return {"object" if key == "ref" else key: value for key, value in document.items()}


def _field_document(each: Difference, field: FieldDrift) -> dict[str, Any]:
    declared, found = (field_value(each.ref.kind, field.path, value) for value in (field.declared, field.found))
    return {**plain(field), "declared": declared, "found": found}
