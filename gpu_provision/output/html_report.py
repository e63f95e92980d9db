"""A run as one HTML file: no scripts, no external resources, everything escaped, bounded in size."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gpu_provision.model.findings import Severity, escape_control_characters
from gpu_provision.model.history import Ending
from gpu_provision.model.plan import Action
from gpu_provision.output import object_text
from gpu_provision.output import plan as plan_view
from gpu_provision.output import status as status_view
from gpu_provision.output.findings import has_errors
from gpu_provision.output.history import RunReport
from gpu_provision.output.progress import Activity, NodeTimeline, TimelineSpan, count_activities, duration, timelines_of
from gpu_provision.output.text import natural_key

_MAX_ROWS = 1000
_MAX_BARS = 40_000  # in the whole chart
_MIN_LETTER_WIDTH = 3.0  # percent that a bar needs to hold its letter
_MIN_BAR_WIDTH = 0.3  # percent, so that every bar is visible
_MAX_REPORTED = 8  # spans of a bar that are named
_TICKS = 5
_MAX_LINES = 3000  # of a diff, of a plan
_MAX_WIDTH = 500  # characters of a line
_MAX_GROUPS = 200  # of validations with the same output; of findings
_MAX_PRINTED = 300  # lines of one validation
_BROKEN = (Activity.FAILED, Activity.BLOCKED)
_KINDS = {"+": "added", "-": "removed", "~": "changed", "@": "changed", ">": "run"}


class ChartBar(NamedTuple):
    """One activity of a node, or several that are too short to be visible. ``x`` and ``width`` in percent."""

    x: float
    width: float
    activity: Activity
    title: str
    letter: str


def chart(lanes: Mapping[str, NodeTimeline], seconds: float) -> dict[str, Any]:
    """Return the chart of a run: failed and blocked nodes first, then the order of their begin."""
    ordered = sorted(
        lanes.values(), key=lambda lane: (lane.current.activity not in _BROKEN, lane.started, natural_key(lane.node))
    )
    visible_lanes, seconds = ordered[:_MAX_ROWS], max(seconds, 0.001)
    least = max(_MIN_BAR_WIDTH, 200 * len(visible_lanes) / _MAX_BARS)
    rows = [(lane, _bars(lane, seconds, least)) for lane in visible_lanes]
    used = {bar.activity for _, bars in rows for bar in bars}
    return {
        "rows": rows,
        "ticks": [(100 * tick / _TICKS, duration(seconds * tick / _TICKS)) for tick in range(_TICKS)],
        "legend": [activity for activity in Activity if activity in used],
        "rest": count_activities(ordered[_MAX_ROWS:]),
    }


def _bars(lane: NodeTimeline, seconds: float, least: float) -> list[ChartBar]:
    """Return spans as bars; consecutive spans shorter than ``least`` percent of the run share a bar."""
    groups: list[list[TimelineSpan]] = []
    was_short, spans = False, lane.spans(seconds)
    for span in spans:
        if span.end <= span.begin and span is not spans[-1]:
            continue
        is_short = span.end - span.begin < seconds * least / 100
        if is_short and was_short:
            groups[-1].append(span)
        else:
            groups.append([span])
        was_short = is_short
    bars = []
    for group in groups:
        activity = max(group, key=lambda span: span.end - span.begin).activity
        width = max((group[-1].end - group[0].begin) / seconds * 100, _MIN_BAR_WIDTH)
        x = min(group[0].begin / seconds * 100, 100 - width)
        texts = [f"{span.begin:.1f} to {span.end:.1f} s: {span.text}" for span in group[:_MAX_REPORTED]]
        more = [f"and {len(group) - _MAX_REPORTED} more"] if group[_MAX_REPORTED:] else []
        letter = activity.letter if width >= _MIN_LETTER_WIDTH else ""
        bars.append(ChartBar(round(x, 2), round(width, 2), activity, "\n".join([lane.node, *texts, *more]), letter))
    return bars


def page(story: RunReport) -> str:
    """Return the page of a run."""
    folder = files("gpu_provision.output")
    css = folder.joinpath("report.css").read_text(encoding="utf-8").strip()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.finalize = _strip_control_characters
    template = environment.from_string(folder.joinpath("report.html").read_text(encoding="utf-8"))
    css_hash = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()  # for its Content-Security-Policy
    return template.render(css=Markup(css), css_hash=css_hash, **_parts(story))  # noqa: S704 - a file of the package


def _strip_control_characters(value: Any) -> Any:
    """Make characters visible that HTML does not allow."""
    return escape_control_characters(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _parts(story: RunReport) -> dict[str, Any]:
    findings = sorted(story.result.findings, key=lambda finding: finding.severity is not Severity.ERROR)
    text, diff, disruption = "", list[str](), list[str]()
    if plan := story.plan:
        text = "\n".join(filter(None, (plan_view.changes(plan), plan_view.validations(plan))))
        disruption = plan_view.disruption(plan).splitlines()[1:]
        # A recorded run has no objects to compare.
        known = (each for each in plan.changes if each.manifest is not None or each.action is Action.DELETE)
        changes = (each for each in known if each.action not in {Action.WAIT, Action.RUN})
        diff = [line for change in changes for line in object_text.diff_lines(change)]
    groups = sorted(status_view.evidence_groups(story.result.evidence), key=lambda group: group[0].passed)
    return {
        "story": story,
        "version": version("gpu-provision"),
        "closing": _closing(story),
        "took": duration(story.seconds),
        "findings": findings[:_MAX_GROUPS],
        "more_findings": max(len(findings) - _MAX_GROUPS, 0),
        "chart": chart(timelines_of(story.result.timeline), story.seconds),
        "components": status_view.component_rows(story.result.states),
        "plan": [(_KINDS.get(line.strip()[:2].rstrip(), ""), line) for line in _truncate(text.splitlines())],
        "rollout": _truncate(disruption),
        "diff": [
            ("head" if line[:3] in {"---", "+++"} else _KINDS.get(line[:1], ""), line) for line in _truncate(diff)
        ],
        "hosts": _truncate(status_view.hosts_text(story.hosts).splitlines()) if story.hosts else [],
        "evidence": [
            (status_view.evidence_title(group), group[0].passed, "\n".join(_truncate(group[0].lines[-_MAX_PRINTED:])))
            for group in groups[:_MAX_GROUPS]
        ],
    }


def _closing(story: RunReport) -> str:
    if story.outcome is Ending.INTERRUPTED:
        return "Interrupted. The same command resumes the run."
    if story.outcome is Ending.RUNNING:
        return "In progress."
    is_early = not (story.result.states or story.closing)
    if story.outcome is Ending.FAILED and has_errors(story.result.findings) and is_early:
        return "Ended early, see below."
    return story.closing or status_view.closing(story.result)


def _truncate(lines: Iterable[str]) -> list[str]:
    """Return the lines that fit a page, cut to its width, and the number of missing lines."""
    rows = list(lines)
    shortened = [line if len(line) <= _MAX_WIDTH else f"{line[:_MAX_WIDTH]}..." for line in rows[:_MAX_LINES]]
    return shortened + ([f"... and {len(rows) - _MAX_LINES} more lines"] if rows[_MAX_LINES:] else [])
