"""An adoption as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gpu_provision.adopt.plan import Adoption, Disposition, ObjectPlan
from gpu_provision.model.cluster import ObjectRef, ref_of
from gpu_provision.output.object_text import field_document, field_line
from gpu_provision.output.text import PLAIN, Style

_SIGNS = {Disposition.TAKEN: "~", Disposition.REPLACED: "-+", Disposition.REMOVED: "-", Disposition.LEFT: "."}
_MOST_FIELDS = 6
_HEADS = {
    Disposition.TAKEN: "taken over: the same objects, from now on ours",
    Disposition.REPLACED: "replaced: ours have another name or selector",
    Disposition.REMOVED: "removed: they do nothing any more",
    Disposition.LEFT: "left as they are: no program manages or updates them any more",
}


def text(adoption: Adoption, style: Style = PLAIN) -> str:
    """Return what an adoption does, in the order in which it does it."""
    if adoption.is_over:
        return ""
    parts = [_head(adoption, style), *_first(adoption), *_drivers(adoption, style)]
    parts += [_section(adoption, fate, style) for fate in Disposition if adoption.of(fate)]
    if adoption.created:
        parts.append(f"{style.bold('created')}: {len(adoption.created)} objects that the operator has not")
    return "\n\n".join(filter(None, parts))


def _head(adoption: Adoption, style: Style) -> str:
    names = ", ".join(policy["metadata"]["name"] for policy in adoption.policies)
    release = f", Helm release {adoption.release}" if adoption.release else ""
    return f"{style.bold(f'ClusterPolicy {names}{release}')} -> inventory {adoption.inventory}"


def _first(adoption: Adoption) -> Iterator[str]:
    """Say why the operator has to stop: what it would do otherwise."""
    for item in adoption.operators:
        replicas = item["spec"].get("replicas", 1)
        how = f"scaled from {replicas} to 0" if replicas else "at 0 replicas"
        yield (
            f"First the operator stops: {ref_of(item)}, {how}. While it runs it would make again what is removed, and"
            " write over what is taken over."
        )


def _drivers(adoption: Adoption, style: Style) -> Iterator[str]:
    if not adoption.drivers:
        return
    kept = [each.node for each in adoption.drivers if each.keeps]
    restarted = [each for each in adoption.drivers if not each.keeps]
    lines = [style.bold("drivers")]
    lines += [f"  . {len(kept)} keep running: {', '.join(sorted(kept))}"] if kept else []
    lines += [f"  > {each.node} is restarted: {'; '.join(each.differs)}" for each in restarted]
    yield "\n".join(lines)


def _section(adoption: Adoption, fate: Disposition, style: Style) -> str:
    lines = [style.bold(_HEADS[fate])]
    alike: dict[str, list[str]] = {}
    for item in adoption.of(fate):
        if item.fields or item.effects:
            lines += _lines(item)
        else:
            alike.setdefault(item.ref.kind, []).append(str(item.ref).partition(" ")[2])
    lines += [f"  {_SIGNS[fate]} {kind} {', '.join(names)}" for kind, names in alike.items()]
    return "\n".join(lines)


def _lines(item: ObjectPlan) -> Iterator[str]:
    told = f"  ({'; '.join(item.effects)})" if item.effects else ""
    yield f"  {_SIGNS[item.fate]} {item.ref}{told}"
    for change in item.fields[:_MOST_FIELDS]:
        yield f"      {field_line(item.ref.kind, change)}"
    if len(item.fields) > _MOST_FIELDS:
        yield f"      and {len(item.fields) - _MOST_FIELDS} more fields; --json has all"


def document(adoption: Adoption) -> dict[str, Any]:
    """Return an adoption as a JSON-able dict."""
    return {
        "is_over": adoption.is_over,
        "release": adoption.release,
        "policies": [policy["metadata"]["name"] for policy in adoption.policies],
        "operators": _refs(ref_of(item) for item in adoption.operators),
        "objects": [_object(item) for item in adoption.objects],
        "drivers": [
            {"node": each.node, "pod": each.ref.name, "keeps": each.keeps, "differs": list(each.differs)}
            for each in adoption.drivers
        ],
        "nodes": [{"node": each.ref.name, "labels": dict(each.changes)} for each in adoption.nodes],
        "created": _refs(adoption.created),
    }


def _refs(refs: Iterable[ObjectRef]) -> list[dict[str, str]]:
    return [ref._asdict() for ref in refs]


def _object(item: ObjectPlan) -> dict[str, Any]:
    fields = [field_document(item.ref.kind, change) for change in item.fields]
    return {**item.ref._asdict(), "fate": item.fate.value, "fields": fields, "effects": list(item.effects)}
