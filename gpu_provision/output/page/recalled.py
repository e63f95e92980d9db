"""A story told from the local record of a run: without its hosts, and without the fields that changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from gpu_provision.history.store import transition_of
from gpu_provision.kube.fence import holder_is_alive_here
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import Ending
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.model.progress import Evidence, NodeState, RunResult, State
from gpu_provision.output.page.story import Outcome, Story, last_states

T = TypeVar("T")
_NOTE = "Told from the local record of the run, which has neither its hosts nor the fields that changed."
_ENUMS = {"state": State, "severity": Severity, "action": Action}
_GOES_ON = "The run goes on: this is what it had written down a few seconds ago. Ask again for more."
_OUTCOMES = {"succeeded": Outcome.SUCCEEDED, "failed": Outcome.FAILED}  # whatever else there is never ended


def story_of(record: Mapping[str, Any]) -> Story:
    """Return the story of a run that is on record.

    Raises KeyError, TypeError, ValueError or AttributeError if the record is none.
    """
    timeline = tuple(transition_of(line) for line in record.get("timeline", ()))
    states = tuple(_all(NodeState, record.get("states", ()))) or last_states(timeline)
    last = timeline[-1].at if timeline else 0.0
    goes_on = record["ending"] == Ending.RUNNING and holder_is_alive_here(str(record.get("holder", "")))
    return Story(
        command="rollback" if record.get("back_to") else "apply",
        inventory=record["inventory"],
        release=record["release"],
        cluster=record.get("cluster", ""),
        outcome=Outcome.RUNNING if goes_on else _OUTCOMES.get(record["ending"], Outcome.INTERRUPTED),
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
            evidence=tuple(_all(Evidence, record.get("evidence", ()))),
            findings=tuple(_all(Finding, record.get("findings", ()))),
            timeline=timeline,
        ),
    )


def _plan(record: Mapping[str, Any]) -> Plan:
    changes = tuple(_made(Change, {**each, "ref": ObjectRef(**each["ref"])}) for each in record["changes"])
    return Plan(
        inventory=record["inventory"],
        release=record["release"],
        cluster=record.get("cluster", ""),
        components=tuple(record.get("components", ())),
        changes=changes,
    )


def _all(made: type[T], found: Iterable[Mapping[str, Any]]) -> Iterable[T]:
    return (_made(made, each) for each in found)


def _made(made: type[T], found: Mapping[str, Any]) -> T:
    """Return a value with what is known of it; a newer record may hold more."""
    known = {field.name: found[field.name] for field in fields(made) if field.name in found}  # type: ignore[arg-type]
    return made(**{name: _value(name, value) for name, value in known.items()})


def _value(name: str, value: Any) -> Any:
    if name in _ENUMS:
        return _ENUMS[name](value)
    return tuple(value) if isinstance(value, list) else value
