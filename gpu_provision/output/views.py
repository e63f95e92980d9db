"""Everything but plans and runs, as text and as JSON: drift, adoption, removal, acceptance tests, preflight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_provision.adopt.plan import Adoption, Disposition, ObjectPlan
from gpu_provision.model.cluster import ObjectRef, ref_of
from gpu_provision.model.findings import Severity
from gpu_provision.model.plan import Action, DestroyResult, Difference, Drift, FieldDrift, Origin, Plan
from gpu_provision.output.findings import finding_text, has_errors, merged, plain
from gpu_provision.output.object_text import HIDDEN, display_value, field_document, field_line, field_value, is_secret
from gpu_provision.output.plan import change_document, changes, resource, resource_document
from gpu_provision.output.status import not_installed
from gpu_provision.output.text import PLAIN, Style, counted, grouped, indented, ranges, wrapped
from gpu_provision.verify.run import Check, CheckOutcome, Verification

if TYPE_CHECKING:
    from gpu_provision.reconcile.preflight import Judgement

_SIGNS = {Disposition.TAKEN: "~", Disposition.REPLACED: "-+", Disposition.REMOVED: "-", Disposition.LEFT: "."}


_MOST_FIELDS = 6


_HEADS = {
    Disposition.TAKEN: "taken over: the same objects, from now on ours",
    Disposition.REPLACED: "replaced: ours have another name or selector",
    Disposition.REMOVED: "removed: they do nothing any more",
    Disposition.LEFT: "left as they are: no program manages or updates them any more",
}


def adoption_text(adoption: Adoption, style: Style = PLAIN) -> str:
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


def adoption_document(adoption: Adoption) -> dict[str, Any]:
    """Return an adoption as a JSON-able dict."""
    return {
        "is_over": adoption.is_over,
        "release": adoption.release,
        "policies": [policy["metadata"]["name"] for policy in adoption.policies],
        "operators": _refs(ref_of(item) for item in adoption.operators),
        "objects": [_object_document(item) for item in adoption.objects],
        "drivers": [
            {"node": each.node, "pod": each.ref.name, "keeps": each.keeps, "differs": list(each.differs)}
            for each in adoption.drivers
        ],
        "nodes": [{"node": each.ref.name, "labels": dict(each.changes)} for each in adoption.nodes],
        "created": _refs(adoption.created),
    }


def _refs(refs: Iterable[ObjectRef]) -> list[dict[str, str]]:
    return [ref._asdict() for ref in refs]


def _object_document(item: ObjectPlan) -> dict[str, Any]:
    fields = [field_document(item.ref.kind, change) for change in item.fields]
    return {**item.ref._asdict(), "fate": item.fate.value, "fields": fields, "effects": list(item.effects)}


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


_WHAT = {Action.CREATE: "is not there", Action.DELETE: "is not wanted", Action.RUN: "has not passed"}


def drift_text(drift: Drift, style: Style = PLAIN, *, hosts: str = "", changed_hosts: int = 0) -> str:
    """Return what differs. ``hosts`` is the text of the hosts that differ; nothing of hosts that do not."""
    if not changed_hosts and not (drift.differences and drift.installed):
        return drift_closing(drift)
    head = f"Inventory {drift.inventory}, release {drift.release}, cluster {drift.cluster}"
    blocks = [_block(drift, origin, style) for origin in _TITLES] if drift.installed else []
    body = [style.bold(head), *blocks]
    if changed_hosts:
        body.append(f"{style.bold('hosts that are not as declared')}\n{indented(hosts)}")
    body.append(resource(drift.resource, style))
    return "\n\n".join(filter(None, [*body, style.bold(drift_closing(drift, hosts=changed_hosts))]))


def drift_closing(drift: Drift, *, hosts: int = 0) -> str:
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
    groups = grouped(found, lambda each: (each.ref, each.action)).values()
    lines = [line for group in groups for line in _drift_lines(group)]
    return "\n".join([style.paint(color, title), *(f"  {line}" for line in lines)])


def _drift_lines(group: Sequence[Difference]) -> Iterator[str]:
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


def drift_document(drift: Drift) -> dict[str, Any]:
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


def preflight_text(found: Judgement, style: Style = PLAIN) -> str:
    """Return every finding, equal ones of several hosts together, and one closing sentence."""
    blocks = [finding_text(finding, style) for finding in merged(found.findings)]
    errors = sum(finding.severity is Severity.ERROR for finding in found.findings)
    counts = f"{counted(errors, 'error')}, {counted(len(found.findings) - errors, 'warning')}"
    read = sum(host.gpus is not None for host in found.hosts.hosts)
    verdict = counts if found.findings else "nothing to say against a run"
    return "\n\n".join([*blocks, f"{counted(read, 'host')} read, nothing changed: {verdict}"])


_HEADERS = ("NODE", "PASSED", "FAILED", "SKIPPED")


_BAD = (CheckOutcome.FAILED, CheckOutcome.UNREACHABLE)


_COLORS = {CheckOutcome.FAILED: "red", CheckOutcome.UNREACHABLE: "red", CheckOutcome.SKIPPED: "yellow"}


_ORDER = (*_BAD, CheckOutcome.SKIPPED)


_CLUSTER = "(cluster)"


def verification_text(found: Verification, style: Style = PLAIN) -> str:
    """Return a row per node, what did not pass with its reason, and one closing sentence."""
    from gpu_provision.output.screen import table

    nodes = dict.fromkeys(check.node for check in found.checks)
    rows = [_row(node, found, style) for node in nodes]
    told = [_told(group, style) for group in _groups(found.of(*_BAD, CheckOutcome.SKIPPED))]
    parts = [table(_HEADERS, rows, style) if rows else "", "\n".join(told), _verification_closing(found)]
    return "\n\n".join(part for part in parts if part)


def _row(node: str, found: Verification, style: Style) -> tuple[str, ...]:
    own = Verification(checks=tuple(check for check in found.checks if check.node == node))
    failed = len(own.of(*_BAD))
    counts = (str(len(own.of(CheckOutcome.PASSED))), style.paint("red", str(failed)) if failed else "0")
    return (node or _CLUSTER, *counts, str(len(own.of(CheckOutcome.SKIPPED))))


def _groups(checks: tuple[Check, ...]) -> Iterator[list[Check]]:
    """Yield checks that differ in nothing but the node together; all that an unreachable host says is one.

    Checks that the same nodes skip for the same reason are one, too.
    """

    def likeness(check: Check) -> tuple[str, str, str]:
        sentence = "" if check.outcome is CheckOutcome.UNREACHABLE else check.sentence
        return check.outcome, sentence, check.reason

    alike = grouped(checks, likeness)
    groups: dict[tuple[str, ...], list[Check]] = {}
    for key, group in alike.items():
        is_skipped = group[0].outcome is CheckOutcome.SKIPPED
        shared = (group[0].reason, *(check.node for check in group)) if is_skipped else key
        groups.setdefault(shared, []).extend(group)
    yield from sorted(groups.values(), key=lambda group: _ORDER.index(group[0].outcome))


def _told(group: list[Check], style: Style) -> str:
    first = group[0]
    where = ranges(dict.fromkeys(check.node for check in group if check.node)) or _CLUSTER
    sentences = "; ".join(dict.fromkeys(check.sentence for check in group))
    what = f"{len(group)} checks" if first.outcome is CheckOutcome.UNREACHABLE else sentences
    head = f"{style.paint(_COLORS[first.outcome], first.outcome.value)}: {where}: {what}"
    return f"{head}\n{indented(first.reason)}"


def _verification_closing(found: Verification) -> str:
    counts = ((outcome, len(found.of(outcome))) for outcome in CheckOutcome)
    said = ", ".join(f"{count} {outcome.value}" for outcome, count in counts if count)
    return f"{len(found.checks)} checks: {said}" if found.checks else "no check was asked for"


def verification_document(found: Verification) -> dict[str, Any]:
    """Return the verification's own parts of its JSON document."""
    checks = [{**plain(check), "check": check.sentence} for check in found.checks]
    for check in checks:
        del check["sentence"]
    return {"passed": not found.of(*_BAD), "checks": checks}


_TRACES = "left by components"


def removal_text(result: DestroyResult, inventory: str, style: Style = PLAIN, *, dry_run: bool) -> str:
    """Return the changes by component, the evictions and one closing sentence; findings follow on stderr."""
    shown = changes(replace(as_plan(result, inventory), inventory=""), style) if dry_run else ""  # records go, too
    evicted = f"{'will be ' if dry_run else ''}evicted: {', '.join(result.evicted)}" if result.evicted else ""
    parts = [style.bold(f"Inventory {inventory}, cluster {result.cluster}"), shown, evicted]
    parts.append(removal_closing(result, style, dry_run=dry_run))
    return wrapped("\n\n".join(filter(None, parts)), style.columns)


def removal_closing(result: DestroyResult, style: Style = PLAIN, *, dry_run: bool) -> str:
    """Return the one sentence with the outcome and the counts."""
    counts = Counter("nodes" if each.ref.kind == "Node" else each.action for each in result.changes)
    figures = [
        f"{counts[Action.DELETE]} objects {'to remove' if dry_run else 'removed'}",
        f"{counts['nodes']} nodes {'to clean' if dry_run else 'cleaned'}",
        *([f"{counts[Action.UPDATE]} left to others"] if counts[Action.UPDATE] else []),
    ]
    if not result.changes and not has_errors(result.findings):
        return style.paint("green", "There is nothing to remove from the cluster. Nothing was changed.")
    if dry_run:
        return style.bold(f"Plan: {', '.join(figures)}. Nothing was changed.")
    figures += [f"{result.requests} API requests", f"{result.seconds:.1f} s"]
    if has_errors(result.findings):
        return style.paint("red", f"Something is left, see below. {', '.join(figures)}.")
    return style.paint("green", f"Nothing of the stack is left. {', '.join(figures)}.")


def removal_document(result: DestroyResult, inventory: str) -> dict[str, Any]:
    """Return the removal's own parts of its JSON document."""
    return {
        "cluster": result.cluster,
        "changes": [change_document(change) for change in as_plan(result, inventory).changes],
        "evicted": list(result.evicted),
        "changed": len(result.changes),
        "requests": result.requests,
        "seconds": round(result.seconds, 3),
        "succeeded": not has_errors(result.findings),
    }


def as_plan(result: DestroyResult, inventory: str) -> Plan:
    """Return what went, or would go, as a plan."""
    components = tuple(dict.fromkeys(change.component or _TRACES for change in result.changes))
    changes = tuple(replace(change, component=change.component or _TRACES) for change in result.changes)
    return Plan(inventory=inventory, release="", cluster=result.cluster, components=components, changes=changes)
