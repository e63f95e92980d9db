"""Runs as they are on record: a table, one run, and all that the page of a run tells."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

from gpu_provision.history.restore import versions_on_record
from gpu_provision.history.store import transition_of
from gpu_provision.hosts.result import HostsResult
from gpu_provision.kube.lease import holder_is_alive_here
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.model.progress import Evidence, NodeState, RunResult, State, Transition
from gpu_provision.output import plan as plan_view
from gpu_provision.output.object_text import image_version, paint_diff
from gpu_provision.output.text import PLAIN, Style, indented

_HEADERS = ("RUN", "BEGAN", "ENDED", "RESULT", "RELEASE", "WRITTEN", "BY", "WHAT")
_COLORS = {Ending.RUNNING: "cyan", Ending.SUCCEEDED: "green", Ending.FAILED: "red", Ending.INTERRUPTED: "yellow"}


def changes_by_run(records: Iterable[Record], now: Inventory) -> dict[int, tuple[str, ...]]:
    """Return what each run declared otherwise than the run before it: versions as old -> new, and other settings."""
    told, before, versions = dict[int, tuple[str, ...]](), "", dict[str, str]()
    for record in records:
        if record.only or not record.text:
            continue
        declared = dict(versions_on_record(record, now))
        if before and record.text != before:
            changed = tuple(_version_changes(versions, declared)) if versions and declared else ()
            told[record.number] = changed or ("other settings",)
        before, versions = record.text, declared
    return told


def _version_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Yield ``driver 595.91.07 -> 580.126.20``, or with a pool where pools differ."""
    pairs = {
        name: _old_to_new(before.get(name, "(none)"), after.get(name, "(none)"))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    }
    of_drivers = [name for name in {**before, **after} if name.startswith("driver (")]
    if of_drivers and len({pairs.get(name) for name in of_drivers}) == 1:
        same = [pairs.pop(name) for name in of_drivers if name in pairs]
        yield from (f"driver {each}" for each in same[:1])
    yield from (f"{name} {told}" for name, told in pairs.items())


def _old_to_new(before: str, after: str) -> str:
    old, new = image_version(before), image_version(after)
    return f"{old} -> {new}" if old != new else f"{before} -> {after}"


def text(history: History, style: Style = PLAIN, changes: Mapping[int, tuple[str, ...]] = MappingProxyType({})) -> str:
    """Return a table of runs, the newest first."""
    if not history.records:
        return "No run on record: none has written anything yet."
    from gpu_provision.output.screen import table

    rows = [_row(record, changes.get(record.number, ()), style) for record in reversed(history.records)]
    return table(_HEADERS, rows, style)


def _row(record: Record, changes: tuple[str, ...], style: Style) -> tuple[str, ...]:
    ending = style.paint(_COLORS[record.ending], record.ending.value)
    times = (record.began, record.ended or "-")
    written = str(record.changed) if record.ended else "-"  # a run that was killed has not said it
    return str(record.number), *times, ending, record.release, written, record.who, what(record, changes)


def what(record: Record, changes: Iterable[str] = ()) -> str:
    """Return what there is to say of a run: what changed, that it was a rollback, why it failed, what is missing."""
    back = f"rollback to run {record.back_to}" if record.back_to else ""
    return "; ".join(filter(None, (back, *changes, record.reason, record.lacks)))


def one(record: Record, details: Mapping[str, Any], style: Style = PLAIN, changes: Iterable[str] = ()) -> str:
    """Return everything about a run; ``details`` is its local record, or empty."""
    lines = {
        "began": record.began,
        "ended": record.ended or "-",
        "result": style.paint(_COLORS[record.ending], record.ending.value),
        "by": record.who,
        "gpu-provision": record.tool,
        "inventory": record.inventory,
        "release": record.release,
        "written": f"{record.changed} objects" if record.ended else "-",
        "plan": record.plan,
        "what": what(record, changes),
    }
    width = max(map(len, lines))
    told = [style.bold(f"Run {record.number}")]
    told += [f"  {name.ljust(width)}  {value}" for name, value in lines.items() if value]
    proofs = [f"{proof['pod']}: {proof['lines'][-1]}" for proof in details.get("evidence") or () if proof.get("lines")]
    parts = ["\n".join(told), _titled("What validations printed last", proofs, style)]
    parts += [_titled("The inventory, without secrets", record.text.splitlines(), style)]
    return "\n\n".join(part for part in parts if part)


def _titled(title: str, lines: Iterable[str], style: Style) -> str:
    body = indented("\n".join(lines))
    return f"{style.bold(title)}\n{body}" if body else ""


def document(record: Record, changes: Iterable[str] = ()) -> dict[str, Any]:
    """Return a run as JSON, without its inventory."""
    changed = record.changed if record.ended else None
    values = {
        **asdict(record),
        "ending": record.ending.value,
        "who": record.who,
        "changed": changed,
        "changes": list(changes),
    }
    return {key: value for key, value in values.items() if key != "text"}


def diff(before: str, after: str, names: tuple[str, str], style: Style = PLAIN) -> str:
    """Return the unified diff of two inventories; empty if they are the same."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), fromfile=names[0], tofile=names[1], lineterm=""
    )
    return paint_diff(lines, style)


def meaning(changes: tuple[Change, ...], style: Style = PLAIN) -> str:
    """Return what the difference of two inventories means for objects, as a plan says it."""
    if not changes:
        return "For the cluster they mean the same."
    components = tuple(dict.fromkeys(change.component for change in changes))
    plan = Plan(inventory="", release="", cluster="", components=components, changes=changes)
    told = "\n\n".join(filter(None, (plan_view.changes(plan, style), plan_view.validations(plan, style))))
    return f"{style.bold('What it means for the cluster')}\n\n{told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run.

    Attributes:
        command: The command as it was called: ``apply``.
        cluster: The cluster as people name it; empty if it was not asked.
        began: When it began, in UTC.
        seconds: How long it took, hosts included.
        plan: What was to change; None if the run ended before.
        hosts: The hosts as they were left; None if they took no part.
        result: How the cluster phase ended, with the findings of the whole run and the timeline of all of it.
        closing: How it ended, in a sentence; empty for that of the result.
        note: What else the reader should know.
    """

    command: str
    inventory: str
    release: str
    outcome: Ending
    began: datetime
    seconds: float
    cluster: str = ""
    plan: Plan | None = None
    hosts: HostsResult | None = None
    result: RunResult = field(default_factory=RunResult)
    closing: str = ""
    note: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What went wrong, and what the reader should know."""
        return self.result.findings


def last_states(timeline: Iterable[Transition]) -> tuple[NodeState, ...]:
    """Return where everything stood in the end: for a run that was not asked, since it was interrupted."""
    last = {(each.component, each.node): each for each in timeline}
    return tuple(
        NodeState(component=each.component, node=each.node, state=each.state, reason=each.reason, step=each.step)
        for each in last.values()
    )


T = TypeVar("T")
_NOTE = "Told from the local record of the run, which has neither its hosts nor the fields that changed."
_ENUMS = {"state": State, "severity": Severity, "action": Action}
_GOES_ON = "The run goes on: this is what it had written down a few seconds ago. Ask again for more."


def report_of_record(record: Mapping[str, Any]) -> RunReport:
    """Return the story of a run that is on record.

    Raises KeyError, TypeError, ValueError or AttributeError if the record is none.
    """
    timeline = tuple(transition_of(line) for line in record.get("timeline", ()))
    states = tuple(_restored_all(NodeState, record.get("states", ()))) or last_states(timeline)
    last = timeline[-1].at if timeline else 0.0
    goes_on = record["ending"] == Ending.RUNNING and holder_is_alive_here(str(record.get("holder", "")))
    return RunReport(
        command="rollback" if record.get("back_to") else "apply",
        inventory=record["inventory"],
        release=record["release"],
        cluster=record.get("cluster", ""),
        outcome=Ending.INTERRUPTED if record["ending"] == Ending.RUNNING and not goes_on else Ending(record["ending"]),
        began=datetime.fromisoformat(record["began"]).astimezone(UTC),
        seconds=max(record.get("seconds", 0.0), last),
        plan=_plan(record) if "changes" in record else None,
        note=f"{_GOES_ON} {_NOTE}" if goes_on else _NOTE,
        result=RunResult(
            run=record.get("number", 0),
            changed=record.get("changed", 0),
            requests=record.get("requests", 0),
            seconds=record.get("seconds", 0.0),
            states=states,
            evidence=tuple(_restored_all(Evidence, record.get("evidence", ()))),
            findings=tuple(_restored_all(Finding, record.get("findings", ()))),
            timeline=timeline,
        ),
    )


def _plan(record: Mapping[str, Any]) -> Plan:
    changes = tuple(_restored(Change, {**each, "ref": ObjectRef(**each["ref"])}) for each in record["changes"])
    return Plan(
        inventory=record["inventory"],
        release=record["release"],
        cluster=record.get("cluster", ""),
        components=tuple(record.get("components", ())),
        changes=changes,
    )


def _restored_all(made: type[T], found: Iterable[Mapping[str, Any]]) -> Iterable[T]:
    return (_restored(made, each) for each in found)


def _restored(made: type[T], found: Mapping[str, Any]) -> T:
    """Return a value with what is known of it; a newer record may hold more."""
    known = {field.name: found[field.name] for field in fields(made) if field.name in found}  # type: ignore[arg-type]
    return made(**{name: _value(name, value) for name, value in known.items()})


def _value(name: str, value: Any) -> Any:
    if name in _ENUMS:
        return _ENUMS[name](value)
    return tuple(value) if isinstance(value, list) else value
