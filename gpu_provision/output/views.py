"""Text and JSON of drift, adoption, removal, acceptance tests and preflight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_provision.adopt.plan import Adoption, Disposition
from gpu_provision.model.cluster import ref_of
from gpu_provision.model.findings import Severity
from gpu_provision.model.plan import Action, DestroyResult, Difference, Drift, FieldDrift, Origin, Plan
from gpu_provision.model.text import pluralize
from gpu_provision.output.findings import finding_text, has_errors, merge_findings, to_json_value
from gpu_provision.output.object_text import HIDDEN, display_value, field_document, field_line, field_value, is_secret
from gpu_provision.output.plan import change_document, changes, resource_document, resource_text
from gpu_provision.output.status import not_installed
from gpu_provision.output.text import PLAIN, Style, group_by, indent, ranges, table, wrap
from gpu_provision.verify.run import Check, CheckOutcome, Verification

if TYPE_CHECKING:
    from gpu_provision.reconcile.preflight import PreflightReport

_MAX_FIELDS = 6
_DISPOSITIONS = {
    Disposition.TAKEN: ("~", "taken over: the same objects, now managed by gpu-provision"),
    Disposition.REPLACED: ("-+", "replaced: gpu-provision uses another name or selector"),
    Disposition.REMOVED: ("-", "removed: no longer used"),
    Disposition.LEFT: (".", "left as they are: no program manages or updates them"),
}


def adoption_text(adoption: Adoption, style: Style = PLAIN) -> str:
    """Return the steps of an adoption in their order."""
    if adoption.is_complete:
        return ""
    names = ", ".join(policy["metadata"]["name"] for policy in adoption.policies)
    release = f", Helm release {adoption.release}" if adoption.release else ""
    parts = [f"{style.bold(f'ClusterPolicy {names}{release}')} -> inventory {adoption.inventory}"]
    for item in adoption.operators:
        replicas = item["spec"].get("replicas", 1)
        how = f"scaled from {replicas} to 0" if replicas else "at 0 replicas"
        parts.append(
            f"First the operator stops: {ref_of(item)}, {how}. While it runs it would recreate what is removed, and"
            " overwrite what is taken over."
        )
    if adoption.drivers:
        running = [each.node for each in adoption.drivers if each.is_kept]
        lines = [style.bold("drivers")]
        lines += [f"  . {len(running)} keep running: {', '.join(sorted(running))}"] if running else []
        restarted = (each for each in adoption.drivers if not each.is_kept)
        lines += [f"  > {each.node} is restarted: {'; '.join(each.differences)}" for each in restarted]
        parts.append("\n".join(lines))
    parts += [
        "\n".join(_disposition_lines(adoption, fate, style)) for fate in Disposition if adoption.objects_with(fate)
    ]
    if adoption.created:
        parts.append(f"{style.bold('created')}: {len(adoption.created)} objects that the operator does not have")
    return "\n\n".join(parts)


def _disposition_lines(adoption: Adoption, fate: Disposition, style: Style) -> Iterator[str]:
    sign, head = _DISPOSITIONS[fate]
    yield style.bold(head)
    alike: dict[str, list[str]] = {}
    for item in adoption.objects_with(fate):
        if not (item.fields or item.effects):
            alike.setdefault(item.ref.kind, []).append(str(item.ref).partition(" ")[2])
            continue
        effects = f"  ({'; '.join(item.effects)})" if item.effects else ""
        yield f"  {sign} {item.ref}{effects}"
        yield from (f"      {field_line(item.ref.kind, change)}" for change in item.fields[:_MAX_FIELDS])
        if item.fields[_MAX_FIELDS:]:
            yield f"      and {len(item.fields) - _MAX_FIELDS} more fields; --json has all"
    yield from (f"  {sign} {kind} {', '.join(names)}" for kind, names in alike.items())


def adoption_document(adoption: Adoption) -> dict[str, Any]:
    """Return an adoption as a JSON-able dict."""
    objects = [
        {
            **item.ref._asdict(),
            "fate": item.disposition.value,
            "fields": [field_document(item.ref.kind, change) for change in item.fields],
            "effects": list(item.effects),
        }
        for item in adoption.objects
    ]
    return {
        "is_over": adoption.is_complete,
        "release": adoption.release,
        "policies": [policy["metadata"]["name"] for policy in adoption.policies],
        "operators": [ref_of(item)._asdict() for item in adoption.operators],
        "objects": objects,
        "drivers": [
            {"node": each.node, "pod": each.ref.name, "keeps": each.is_kept, "differs": list(each.differences)}
            for each in adoption.drivers
        ],
        "nodes": [{"node": each.ref.name, "labels": dict(each.changes)} for each in adoption.nodes],
        "created": [ref._asdict() for ref in adoption.created],
    }


_ORIGINS = {  # title, its color, words of the count
    Origin.DRIFT: ("changed since it was applied", "red", "changed since applied"),
    Origin.UNKNOWN: (
        "changed since it was applied, or not applied yet: nothing tells",
        "yellow",
        "changed or not applied",
    ),
    Origin.PENDING: ("declared and not applied yet", "cyan", "not applied yet"),
    Origin.NOT_READY: ("as declared, but not ready", "yellow", "not ready"),
}
_WHAT = {Action.CREATE: " is not there", Action.DELETE: " is not declared", Action.RUN: " has not passed"}


def drift_text(drift: Drift, style: Style = PLAIN, *, hosts: str = "", changed_hosts: int = 0) -> str:
    """Return the differences. ``hosts`` is the text of the hosts that differ."""
    counts = Counter(origin for origin, _ in {(each.origin, each.ref) for each in drift.differences})
    parts = [f"{counts[each]} {words}" for each, (_, _, words) in _ORIGINS.items() if counts[each] and drift.installed]
    parts += [f"{pluralize(changed_hosts, 'host')} not as declared"] if changed_hosts else []
    head = [] if drift.installed else [not_installed(drift.inventory, drift.cluster)]
    if not parts:
        return head[0] if head else f"No drift: everything is as inventory {drift.inventory} declares."
    closing = " ".join([*head, f"Drift: {', '.join(parts)}. Nothing was changed."])
    body = [style.bold(f"Inventory {drift.inventory}, release {drift.release}, cluster {drift.cluster}")]
    for origin, (title, color, _) in _ORIGINS.items() if drift.installed else ():
        groups = group_by(drift.with_origin(origin), lambda each: (each.ref, each.action)).values()
        lines = [f"  {line}" for group in groups for line in _difference_lines(group)]
        body += ["\n".join([style.paint(color, title), *lines])] if lines else []
    if changed_hosts:
        body.append(f"{style.bold('hosts that are not as declared')}\n{indent(hosts)}")
    return "\n\n".join(filter(None, [*body, resource_text(drift.resource, style), style.bold(closing)]))


def _difference_lines(group: list[Difference]) -> Iterator[str]:
    first = group[0]
    yield f"{first.ref}{_WHAT.get(first.action, '')}  ({first.component})"
    for each in group:
        where = f"{ranges(each.nodes)}: " if each.nodes else ""
        yield from (f"  {_field_line(each, field)}" for field in each.fields)
        yield from (f"  {where}{note}" for note in each.notes)


def _field_line(each: Difference, field: FieldDrift) -> str:
    by = f"  by {field.writer}" if field.writer else ""
    also = f"  ({_ORIGINS[field.origin][2]})" if field.origin is not each.origin else ""
    if is_secret(each.ref.kind, field.path):
        return f"{field.path}: {HIDDEN}{by}{also}"
    values = (field_value(each.ref.kind, field.path, one) for one in (field.found, field.declared))
    return f"{field.path}: {' instead of '.join(map(display_value, values))}{by}{also}"


def drift_document(drift: Drift) -> dict[str, Any]:
    """Return the drift's own parts of its JSON document."""
    counts, differences = Counter(each.origin for each in drift.differences), []
    for each in drift.differences:
        document = to_json_value(each)
        document["object"] = document.pop("ref")
        for entry, field in zip(document["fields"], each.fields, strict=True):
            entry["declared"] = field_value(each.ref.kind, field.path, field.declared)
            entry["found"] = field_value(each.ref.kind, field.path, field.found)
        differences.append(document)
    return {
        "inventory": drift.inventory,
        "release": drift.release,
        "cluster": drift.cluster,
        "applied": drift.applied,
        "installed": drift.installed,
        "resource": resource_document(drift.resource),
        "differences": differences,
        "summary": {origin.value: counts[origin] for origin in Origin},
    }


def preflight_text(report: PreflightReport, style: Style = PLAIN) -> str:
    """Return every finding, equal ones of several hosts together, and one closing sentence."""
    blocks = [finding_text(finding, style) for finding in merge_findings(report.findings)]
    errors = sum(finding.severity is Severity.ERROR for finding in report.findings)
    counts = f"{pluralize(errors, 'error')}, {pluralize(len(report.findings) - errors, 'warning')}"
    read = sum(host.gpus is not None for host in report.hosts.hosts)
    verdict = counts if report.findings else "no problem found"
    return "\n\n".join([*blocks, f"{pluralize(read, 'host')} read, nothing changed: {verdict}"])


_BAD = (CheckOutcome.FAILED, CheckOutcome.UNREACHABLE)
_COLORS = {CheckOutcome.FAILED: "red", CheckOutcome.UNREACHABLE: "red", CheckOutcome.SKIPPED: "yellow"}  # worst first
_CLUSTER = "(cluster)"


def verification_text(verification: Verification, style: Style = PLAIN) -> str:
    """Return a row per node, failed and skipped checks with their reasons, and one closing sentence."""
    if not verification.checks:
        return "no check selected"
    rows = []
    for node, own in group_by(verification.checks, lambda check: check.node).items():
        counts = Counter(check.outcome for check in own)
        failed = sum(counts[outcome] for outcome in _BAD)
        failures = style.paint("red", str(failed)) if failed else "0"
        rows.append((node or _CLUSTER, str(counts[CheckOutcome.PASSED]), failures, str(counts[CheckOutcome.SKIPPED])))
    blocks = []
    for group in _group_checks(verification.checks_with(*_COLORS)):
        first = group[0]
        where = ranges(check.node for check in group if check.node) or _CLUSTER
        what = "; ".join(dict.fromkeys(check.sentence for check in group))
        if first.outcome is CheckOutcome.UNREACHABLE:
            what = f"{len(group)} checks"
        word = style.paint(_COLORS[first.outcome], first.outcome.value)
        blocks.append(f"{word}: {where}: {what}\n{indent(first.reason)}")
    sums = ((outcome, len(verification.checks_with(outcome))) for outcome in CheckOutcome)
    counted = ", ".join(f"{count} {outcome.value}" for outcome, count in sums if count)
    closing = f"{len(verification.checks)} checks: {counted}"
    parts = [table(("NODE", "PASSED", "FAILED", "SKIPPED"), rows, style), "\n".join(blocks), closing]
    return "\n\n".join(filter(None, parts))


def _group_checks(checks: Iterable[Check]) -> list[list[Check]]:
    """Group checks that differ only in the node, and all checks of an unreachable host.

    Checks that the same nodes skip for the same reason are one group, too.
    """

    def likeness(check: Check) -> tuple[str, str, str]:
        sentence = "" if check.outcome is CheckOutcome.UNREACHABLE else check.sentence
        return check.outcome, sentence, check.reason

    groups: dict[tuple[str, ...], list[Check]] = {}
    for key, group in group_by(checks, likeness).items():
        is_skipped = group[0].outcome is CheckOutcome.SKIPPED
        shared = (group[0].reason, *(check.node for check in group)) if is_skipped else key
        groups.setdefault(shared, []).extend(group)
    return sorted(groups.values(), key=lambda group: [*_COLORS].index(group[0].outcome))


def verification_document(verification: Verification) -> dict[str, Any]:
    """Return the verification's own parts of its JSON document."""
    checks = [to_json_value(check) for check in verification.checks]
    for check in checks:
        check["check"] = check.pop("sentence")
    return {"passed": not verification.checks_with(*_BAD), "checks": checks}


def removal_text(result: DestroyResult, inventory: str, style: Style = PLAIN, *, dry_run: bool) -> str:
    """Return the changes by component, the evictions and one closing sentence; findings follow on stderr."""
    objects = changes(replace(to_plan(result, inventory), inventory=""), style) if dry_run else ""  # records go, too
    evicted = f"{'will be ' if dry_run else ''}evicted: {', '.join(result.evicted)}" if result.evicted else ""
    parts = [style.bold(f"Inventory {inventory}, cluster {result.cluster}"), objects, evicted]
    parts.append(removal_closing(result, style, dry_run=dry_run))
    return wrap("\n\n".join(filter(None, parts)), style.columns)


def removal_closing(result: DestroyResult, style: Style = PLAIN, *, dry_run: bool) -> str:
    """Return one sentence with the outcome and the counts."""
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
        "changes": [change_document(change) for change in to_plan(result, inventory).changes],
        "evicted": list(result.evicted),
        "changed": len(result.changes),
        "requests": result.requests,
        "seconds": round(result.seconds, 3),
        "succeeded": not has_errors(result.findings),
    }


def to_plan(result: DestroyResult, inventory: str) -> Plan:
    """Return the removal as a plan."""
    changes = tuple(replace(change, component=change.component or "left by components") for change in result.changes)
    components = tuple(dict.fromkeys(change.component for change in changes))
    return Plan(inventory=inventory, release="", cluster=result.cluster, components=components, changes=changes)
