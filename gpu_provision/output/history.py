"""Recorded runs: the table, one run, and the data of the HTML report."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from msgspec import convert

from gpu_provision.history.restore import versions_on_record
from gpu_provision.history.store import transition_of
from gpu_provision.hosts.result import HostsResult
from gpu_provision.kube.lease import holder_is_alive_here
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Change, Plan
from gpu_provision.model.progress import NodeState, RunResult, Transition
from gpu_provision.output import plan as plan_view
from gpu_provision.output.object_text import image_version, paint_diff
from gpu_provision.output.text import PLAIN, Style, indent, table

_COLORS = {Ending.RUNNING: "cyan", Ending.SUCCEEDED: "green", Ending.FAILED: "red", Ending.INTERRUPTED: "yellow"}


def changes_by_run(records: Iterable[Record], now: Inventory) -> dict[int, tuple[str, ...]]:
    """Return the changes of each run to the run before: versions as old -> new, and other settings."""
    changes, before, versions = dict[int, tuple[str, ...]](), "", dict[str, str]()
    for record in records:
        if record.only or not record.text:
            continue
        declared = dict(versions_on_record(record, now))
        if before and record.text != before:
            changed = tuple(_version_changes(versions, declared)) if versions and declared else ()
            changes[record.number] = changed or ("other settings",)
        before, versions = record.text, declared
    return changes


def _version_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Yield ``driver 595.91.07 -> 580.126.20``, or with a pool where pools differ."""
    pairs: dict[str, str] = {}
    for name in {**before, **after}:
        then, now = before.get(name, "(none)"), after.get(name, "(none)")
        old, new = image_version(then), image_version(now)
        if then != now:
            pairs[name] = f"{old} -> {new}" if old != new else f"{then} -> {now}"
    of_drivers = [name for name in {**before, **after} if name.startswith("driver (")]
    if of_drivers and len({pairs.get(name) for name in of_drivers}) == 1:
        same = [pairs.pop(name) for name in of_drivers if name in pairs]
        yield from (f"driver {each}" for each in same[:1])
    yield from (f"{name} {versions}" for name, versions in pairs.items())


def text(history: History, style: Style = PLAIN, changes: Mapping[int, tuple[str, ...]] = MappingProxyType({})) -> str:
    """Return a table of runs, the newest first."""
    if not history.records:
        return "No run on record: none has written anything yet."
    rows = [
        (
            str(record.number),
            record.began,
            record.ended or "-",
            style.paint(_COLORS[record.ending], record.ending.value),
            record.release,
            str(record.changed) if record.ended else "-",  # unknown for a killed run
            record.user,
            _summary(record, changes.get(record.number, ())),
        )
        for record in reversed(history.records)
    ]
    return table(("RUN", "BEGAN", "ENDED", "RESULT", "RELEASE", "WRITTEN", "BY", "WHAT"), rows, style)


def _summary(record: Record, changes: Iterable[str] = ()) -> str:
    """Return the summary of a run: rollback, changes, reason of a failure, missing parts."""
    back = f"rollback to run {record.back_to}" if record.back_to else ""
    return "; ".join(filter(None, (back, *changes, record.reason, record.lacks)))


def record_text(record: Record, details: Mapping[str, Any], style: Style = PLAIN, changes: Iterable[str] = ()) -> str:
    """Return everything about a run; ``details`` is its local record, or empty."""
    lines = {
        "began": record.began,
        "ended": record.ended or "-",
        "result": style.paint(_COLORS[record.ending], record.ending.value),
        "by": record.user,
        "gpu-provision": record.tool,
        "inventory": record.inventory,
        "release": record.release,
        "written": f"{record.changed} objects" if record.ended else "-",
        "plan": record.plan,
        "what": _summary(record, changes),
    }
    width = max(map(len, lines))
    rows = [style.bold(f"Run {record.number}")]
    rows += [f"  {name.ljust(width)}  {value}" for name, value in lines.items() if value]
    proofs = [f"{proof['pod']}: {proof['lines'][-1]}" for proof in details.get("evidence") or () if proof.get("lines")]
    parts = ["\n".join(rows)]
    for title, body in (
        ("What validations printed last", "\n".join(proofs)),
        ("The inventory, without secrets", record.text),
    ):
        parts += [f"{style.bold(title)}\n{indent(body)}"] if body else []
    return "\n\n".join(parts)


def document(record: Record, changes: Iterable[str] = ()) -> dict[str, Any]:
    """Return a run as JSON, without its inventory."""
    values = {**asdict(record), "ending": record.ending.value, "who": record.user, "changes": list(changes)}
    del values["text"]
    return values if record.ended else {**values, "changed": None}


def diff(before: str, after: str, names: tuple[str, str], style: Style = PLAIN) -> str:
    """Return the unified diff of two inventories; empty if they are the same."""
    return paint_diff(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""), style)


def changes_text(changes: tuple[Change, ...], style: Style = PLAIN) -> str:
    """Return the changes of objects between two inventories, as text of a plan."""
    if not changes:
        return "For the cluster they mean the same."
    components = tuple(dict.fromkeys(change.component for change in changes))
    plan = Plan(inventory="", release="", cluster="", components=components, changes=changes)
    body = "\n\n".join(filter(None, (plan_view.changes(plan, style), plan_view.validations(plan, style))))
    return f"{style.bold('What it means for the cluster')}\n\n{body}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run, for its HTML report."""

    command: str
    inventory: str
    release: str
    outcome: Ending
    began: datetime  # in UTC
    seconds: float  # hosts included
    cluster: str = ""  # empty if unknown
    plan: Plan | None = None  # None if the run ended before the plan
    hosts: HostsResult | None = None  # None if the hosts took no part
    result: RunResult = field(default_factory=RunResult)  # with the findings and the timeline of the whole run
    closing: str = ""  # sentence with the outcome; empty for that of the result
    note: str = ""  # further remark


def last_states(timeline: Iterable[Transition]) -> tuple[NodeState, ...]:
    """Return the last state of every component and node, for an interrupted run."""
    last = {(each.component, each.node): each for each in timeline}
    return tuple(
        NodeState(component=each.component, node=each.node, state=each.state, reason=each.reason, step=each.step)
        for each in last.values()
    )


_NOTE = "Source: the local record of the run, which has neither its hosts nor the fields that changed."
_GOES_ON = "The run is in progress: this is its state a few seconds ago."


def report_of_record(record: Mapping[str, Any]) -> RunReport:
    """Return the report of a recorded run.

    Raises KeyError, TypeError, ValueError or AttributeError for an invalid record.
    """
    timeline = tuple(transition_of(line) for line in record.get("timeline", ()))
    # Unknown fields of a newer record are dropped.
    result = convert({**record, "run": record.get("number", 0), "timeline": ()}, RunResult)
    cluster = record.get("cluster", "")
    outcome = Ending(record["ending"])
    goes_on = outcome is Ending.RUNNING and holder_is_alive_here(str(record.get("holder", "")))
    plan = None
    if "changes" in record:
        changes = [{**each, "ref": [*ObjectRef(**each["ref"])]} for each in record["changes"]]
        plan = Plan(
            inventory=record["inventory"],
            release=record["release"],
            cluster=cluster,
            components=tuple(record.get("components", ())),
            changes=convert(changes, tuple[Change, ...]),
        )
    return RunReport(
        command="rollback" if record.get("back_to") else "apply",
        inventory=record["inventory"],
        release=record["release"],
        cluster=cluster,
        outcome=Ending.INTERRUPTED if outcome is Ending.RUNNING and not goes_on else outcome,
        began=datetime.fromisoformat(record["began"]).astimezone(UTC),
        seconds=max(result.seconds, timeline[-1].at if timeline else 0.0),
        plan=plan,
        note=f"{_GOES_ON} {_NOTE}" if goes_on else _NOTE,
        result=replace(result, states=result.states or last_states(timeline), timeline=timeline),
    )
