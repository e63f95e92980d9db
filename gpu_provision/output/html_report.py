"""A run as one HTML file: no scripts, nothing from elsewhere, everything escaped, bounded in size."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gpu_provision.model.findings import Finding, Severity, visible
from gpu_provision.model.history import Ending
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.model.progress import Evidence
from gpu_provision.output import object_text
from gpu_provision.output import plan as plan_view
from gpu_provision.output import status as status_view
from gpu_provision.output.findings import has_errors
from gpu_provision.output.history import RunReport
from gpu_provision.output.progress import Activity, NodeTimeline, NodeTimelines, TimelineSpan, duration, timelines_of
from gpu_provision.output.status import evidence_groups, evidence_title
from gpu_provision.output.text import natural

MOST_ROWS = 1000
_MOST_BARS = 40_000  # in the whole chart
_LEAST_LETTER = 3.0  # percent that a bar needs to hold its letter
_THINNEST = 0.3  # percent: what is there can be seen
_MOST_TOLD = 8  # spans of a bar that are named
_MOST_TICKS = 5
_LAST_TICK = 0.92  # of the run; the label of a later one would not fit
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_BROKEN = (Activity.FAILED, Activity.BLOCKED)


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One thing that a node was about; several, where each is too short to be seen. ``x`` and ``width`` in percent."""

    x: float
    width: float
    doing: Activity
    title: str

    @property
    def letter(self) -> str:
        """The letter that it has room for."""
        return self.doing.letter if self.width >= _LEAST_LETTER else ""


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One node: its bars, and where it stands in the end."""

    node: str
    bars: tuple[ChartBar, ...]
    doing: Activity
    status: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The whole of it. ``ticks`` are positions in percent and their labels; ``rest`` tells of nodes left out."""

    rows: tuple[ChartRow, ...]
    ticks: tuple[tuple[float, str], ...]
    legend: tuple[Activity, ...]
    rest: str


def chart(lanes: NodeTimelines, seconds: float) -> Chart:
    """Return the chart of a run: nodes that ended badly first, then in the order in which they were begun."""
    ordered = sorted(lanes.of.values(), key=_place)
    shown, rest = ordered[:MOST_ROWS], ordered[MOST_ROWS:]
    seconds = max(seconds, 0.001)
    least = max(_THINNEST, 200 * len(shown) / _MOST_BARS)
    rows = tuple(
        ChartRow(lane.node, _bars(lane, seconds, least), lane.current.doing, lane.current.text) for lane in shown
    )
    used = {bar.doing for row in rows for bar in row.bars}
    return Chart(rows, tuple(_ticks(seconds)), tuple(doing for doing in Activity if doing in used), _told(rest))


def _place(lane: NodeTimeline) -> tuple[object, ...]:
    return lane.current.doing not in _BROKEN, lane.started, natural(lane.node)


def _told(rest: Sequence[NodeTimeline]) -> str:
    counts = Counter(lane.current.doing for lane in rest)
    return ", ".join(f"{number} {doing.word}" for doing, number in counts.items())


def _bars(lane: NodeTimeline, seconds: float, least: float) -> tuple[ChartBar, ...]:
    spans = lane.spans(seconds)
    seen = [span for span in spans if span.end > span.begin or span is spans[-1]]
    return tuple(_bar(lane.node, group, seconds) for group in _groups(seen, seconds * least / 100))


def _groups(spans: Iterable[TimelineSpan], least: float) -> Iterator[list[TimelineSpan]]:
    """Yield spans one by one; neighbors that are shorter than ``least`` seconds come together."""
    short: list[TimelineSpan] = []
    for span in spans:
        if span.end - span.begin < least:
            short.append(span)
            continue
        if short:
            yield short
            short = []
        yield [span]
    if short:
        yield short


def _bar(node: str, group: Sequence[TimelineSpan], seconds: float) -> ChartBar:
    longest = max(group, key=lambda span: span.end - span.begin)
    width = max((group[-1].end - group[0].begin) / seconds * 100, _THINNEST)
    x = min(group[0].begin / seconds * 100, 100 - width)
    told = [f"{span.begin:.1f} to {span.end:.1f} s: {span.text}" for span in group[:_MOST_TOLD]]
    more = [f"and {len(group) - _MOST_TOLD} more"] if len(group) > _MOST_TOLD else []
    return ChartBar(round(x, 2), round(width, 2), longest.doing, "\n".join([node, *told, *more]))


def _ticks(seconds: float) -> Iterator[tuple[float, str]]:
    step = next((step for step in _STEPS if seconds / step <= _MOST_TICKS), _STEPS[-1])
    for at in range(0, int(seconds * _LAST_TICK) + 1, step):
        yield round(at / seconds * 100, 2), duration(at).removesuffix(" 00 s").removesuffix(" 00 min")


_MOST_LINES = 3000  # of a diff, of a plan
_MOST_WIDE = 500  # characters of a line
_MOST_GROUPS = 200  # of validations that printed the same; of findings
_MOST_PRINTED = 300  # lines of one validation


class Line(NamedTuple):
    """One line of a diff or a plan, and what it is: added, removed, changed, head, or nothing."""

    kind: str
    text: str


def page(story: RunReport) -> str:
    """Return the page of a run."""
    folder = files("gpu_provision.output")
    css = folder.joinpath("report.css").read_text(encoding="utf-8").strip()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.finalize = _clean
    template = environment.from_string(folder.joinpath("report.html").read_text(encoding="utf-8"))
    return template.render(css=Markup(css), css_hash=_hash(css), **_parts(story))  # noqa: S704 - our own file


def _hash(css: str) -> str:
    """Return what the page's Content-Security-Policy calls its one style sheet."""
    return base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()


def _clean(value: Any) -> Any:
    """Return a text without the characters that HTML does not allow: logs are full of them."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _parts(story: RunReport) -> dict[str, Any]:
    findings = sorted(story.findings, key=lambda finding: finding.severity is not Severity.ERROR)
    return {
        "story": story,
        "version": version("gpu-provision"),
        "closing": _closing(story),
        "took": duration(story.seconds),
        "findings": [_finding(finding) for finding in findings[:_MOST_GROUPS]],
        "more_findings": max(len(findings) - _MOST_GROUPS, 0),
        "chart": chart(timelines_of(story.result.timeline), story.seconds),
        "components": status_view.component_rows(story.result.states),
        "plan": _plan_lines(story.plan) if story.plan else [],
        "rollout": _cut(plan_view.disruption(story.plan).splitlines()[1:]) if story.plan else [],
        "diff": _diff_lines(story.plan) if story.plan else [],
        "hosts": _cut(status_view.hosts_text(story.hosts).splitlines()) if story.hosts else [],
        "evidence": _evidence(story.result.evidence),
    }


def _closing(story: RunReport) -> str:
    if story.outcome is Ending.INTERRUPTED:
        return "Interrupted. The same command goes on from where things stand."
    if story.outcome is Ending.RUNNING:
        return "It is under way."
    if story.outcome is Ending.FAILED and has_errors(story.findings) and not (story.result.states or story.closing):
        return "It ended early, see below."
    return story.closing or status_view.closing(story.result)


def _finding(finding: Finding) -> dict[str, Any]:
    rows = (("Where", finding.where), ("Seen", finding.evidence), ("Else", finding.consequence), ("Fix", finding.fix))
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "what": finding.what,
        "rows": [(name, text) for name, text in rows if text],
    }


def _plan_lines(plan: Plan) -> list[Line]:
    told = "\n".join(filter(None, (plan_view.changes(plan), plan_view.validations(plan))))
    return [Line(_PLAN_KINDS.get(line.strip()[:2], ""), line) for line in _cut(told.splitlines())]


_PLAN_KINDS = {"+ ": "added", "- ": "removed", "~ ": "changed", "> ": "run"}


def _diff_lines(plan: Plan) -> list[Line]:
    told = (change for change in plan.changes if change.action not in {Action.WAIT, Action.RUN} and _is_known(change))
    lines = (line for change in told for line in object_text.diff_lines(change))
    return [Line(_diff_kind(line), line) for line in _cut(lines)]


def _is_known(change: Change) -> bool:
    """Whether there is anything to compare; of a run on record the objects are not kept."""
    return change.manifest is not None or change.action is Action.DELETE


def _diff_kind(line: str) -> str:
    if line.startswith(("---", "+++")):
        return "head"
    return {"+": "added", "-": "removed", "@": "changed"}.get(line[:1], "")


def _cut(lines: Iterable[str]) -> list[str]:
    """Return as many lines, and as much of them, as fits a page, and how many are missing."""
    found = list(lines)
    kept = [line if len(line) <= _MOST_WIDE else f"{line[:_MOST_WIDE]}..." for line in found[:_MOST_LINES]]
    return kept + ([f"... and {len(found) - _MOST_LINES} more lines"] if len(found) > _MOST_LINES else [])


def _evidence(found: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Failed ones first."""
    groups = sorted(evidence_groups(found), key=lambda group: group[0].passed)
    return [
        {
            "title": evidence_title(group),
            "passed": group[0].passed,
            "text": "\n".join(_cut(group[0].lines[-_MOST_PRINTED:])),
        }
        for group in groups[:_MOST_GROUPS]
    ]
