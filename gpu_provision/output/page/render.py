"""A story as one HTML file: no scripts, nothing from elsewhere, everything escaped, bounded in size."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gpu_provision.model.findings import Finding, Severity, visible
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.model.progress import Evidence
from gpu_provision.output import diff as diff_view
from gpu_provision.output import plan as plan_view
from gpu_provision.output import rollout as rollout_view
from gpu_provision.output import run as hosts_view
from gpu_provision.output import run as run_view
from gpu_provision.output.page.chart import chart
from gpu_provision.output.page.story import Outcome, Story
from gpu_provision.output.progress import duration
from gpu_provision.output.status import evidence_groups, evidence_title
from gpu_provision.output.timeline import lanes_of

_MOST_LINES = 3000  # of a diff, of a plan
_MOST_WIDE = 500  # characters of a line
_MOST_GROUPS = 200  # of validations that printed the same; of findings
_MOST_PRINTED = 300  # lines of one validation


class Line(NamedTuple):
    """One line of a diff or a plan, and what it is: added, removed, changed, head, or nothing."""

    kind: str
    text: str


def page(story: Story) -> str:
    """Return the page of a run."""
    folder = files("gpu_provision.output.page")
    css = folder.joinpath("page.css").read_text(encoding="utf-8").strip()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.finalize = _clean
    template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(css=Markup(css), css_hash=_hash(css), **_parts(story))  # noqa: S704 - our own file


def _hash(css: str) -> str:
    """Return what the page's Content-Security-Policy calls its one style sheet."""
    return base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()


def _clean(value: Any) -> Any:
    """Return a text without the characters that HTML does not allow: logs are full of them."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _parts(story: Story) -> dict[str, Any]:
    findings = sorted(story.findings, key=lambda finding: finding.severity is not Severity.ERROR)
    return {
        "story": story,
        "version": version("gpu-provision"),
        "closing": _closing(story),
        "took": duration(story.seconds),
        "findings": [_finding(finding) for finding in findings[:_MOST_GROUPS]],
        "more_findings": max(len(findings) - _MOST_GROUPS, 0),
        "chart": chart(lanes_of(story.result.timeline), story.seconds),
        "components": run_view.component_rows(story.result.states),
        "plan": _plan_lines(story.plan) if story.plan else [],
        "rollout": _rollout_lines(story.plan) if story.plan else [],
        "diff": _diff_lines(story.plan) if story.plan else [],
        "hosts": _cut(hosts_view.hosts_text(story.hosts).splitlines()) if story.hosts else [],
        "evidence": _evidence(story.result.evidence),
    }


def _closing(story: Story) -> str:
    if story.outcome is Outcome.INTERRUPTED:
        return "Interrupted. The same command goes on from where things stand."
    if story.outcome is Outcome.RUNNING:
        return "It is under way."
    errors = any(finding.severity is Severity.ERROR for finding in story.findings)
    if story.outcome is Outcome.FAILED and errors and not (story.result.states or story.closing):
        return "It ended early, see below."
    return story.closing or run_view.closing(story.result)


def _finding(finding: Finding) -> dict[str, Any]:
    rows = (("Where", finding.where), ("Seen", finding.evidence), ("Else", finding.consequence), ("Fix", finding.fix))
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "what": finding.what,
        "rows": [(name, text) for name, text in rows if text],
    }


def _plan_lines(plan: Plan) -> list[Line]:
    return [Line(_PLAN_KINDS.get(line.strip()[:2], ""), line) for line in _cut(plan_view.changes(plan).splitlines())]


def _rollout_lines(plan: Plan) -> list[str]:
    """The waves as they were planned; the timeline has what came of it."""
    return _cut(rollout_view.text(plan.rollout).splitlines()) if plan.rollout else []


_PLAN_KINDS = {"+ ": "added", "- ": "removed", "~ ": "changed", "> ": "run"}


def _diff_lines(plan: Plan) -> list[Line]:
    told = (change for change in plan.changes if change.action not in {Action.WAIT, Action.RUN} and _is_known(change))
    return [Line(_diff_kind(line), line) for line in _cut(line for change in told for line in diff_view.one(change))]


def _is_known(change: Change) -> bool:
    """Whether there is anything to compare; of a run on record the objects are not kept."""
    return change.manifest is not None or change.action is Action.DELETE


def _diff_kind(line: str) -> str:
    if line.startswith(("---", "+++")):
        return "head"
    return {"+": "added", "-": "removed", "@": "changed"}.get(line[:1], "")


def _cut(lines: Iterable[str]) -> list[str]:
    """Return as many lines, and as much of them, as a page bears; what is missing is told."""
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
