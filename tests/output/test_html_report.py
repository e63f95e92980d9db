"""The HTML report of a run and its chart."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import Ending
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import Evidence, NodeState, RunResult, State, Transition
from gpu_provision.output import html_report
from gpu_provision.output.history import RunReport
from gpu_provision.output.html_report import ChartBar, chart, page
from gpu_provision.output.progress import Activity, NodeTimeline, timelines_of
from tests.hostile import find_control_characters
from tests.output.samples import EVIDENCE, HOSTS, PLAN, RESULT, ROLLOUT

Step = tuple[float, str, State, str]  # seconds, node, state, step


def drawn(*steps: Step, seconds: float = 100.0) -> list[tuple[NodeTimeline, list[ChartBar]]]:
    found = (
        Transition(at=at, component="driver", node=node, state=state, step=step) for at, node, state, step in steps
    )
    rows: list[tuple[NodeTimeline, list[ChartBar]]] = chart(timelines_of(found), seconds)["rows"]
    return rows


def test_bars_are_in_percent_of_the_run() -> None:
    """From the first transition of a node to the end; short spans share a bar."""
    ((lane, bars),) = drawn(
        (0, "n1", State.PROGRESSING, "upgrade-required"),
        (200, "n1", State.PROGRESSING, "pod-restart-required"),
        (500, "n1", State.PROGRESSING, "cordon-required"),
        (500.2, "n1", State.PROGRESSING, "pod-restart-required"),
        (501, "n1", State.READY, "upgrade-done"),
        seconds=1000,
    )
    assert [bar[:3] for bar in bars] == [
        (0, 20, Activity.WAITS),
        (20, 30, Activity.RESTART),
        (50, 0.3, Activity.RESTART),
        (50.1, 49.9, Activity.READY),
    ]
    assert bars[1].title == "n1\n200.0 to 500.0 s: driver restarts"
    assert bars[2].title.endswith("500.0 to 500.2 s: cordon\n500.2 to 501.0 s: driver restarts")
    assert lane.current.text == "ready"


def test_failed_nodes_come_first_then_the_earliest() -> None:
    """Nodes without a begin come last; a failure at the very end is drawn."""
    rows = drawn(
        (0, "n3", State.PROGRESSING, "upgrade-required"),
        (0, "n10", State.PROGRESSING, "pod-restart-required"),
        (0, "n2", State.PROGRESSING, "pod-restart-required"),
        (5, "n1", State.PROGRESSING, "pod-restart-required"),
        (9, "n2", State.READY, "upgrade-done"),
        (100, "n1", State.FAILED, "upgrade-failed"),
    )
    assert [lane.node for lane, _ in rows] == ["n1", "n2", "n10", "n3"]
    last = rows[0][1][-1]
    assert (last.activity, last.x + last.width) == (Activity.FAILED, 100)


NASTY = '<script>alert("x")</script>&\x1b[31m\x9b\u202e'
_VOID = {"meta", "rect"}


class Page(HTMLParser):
    """A parser that records the tags and the text of a page."""

    def __init__(self, html: str) -> None:
        """Parse the page; AssertionError for a mismatched tag."""
        super().__init__()
        self.tags, self.text = list[tuple[str, dict[str, str | None]]](), ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def transition(at: float, node: str, state: State, step: str = "", reason: str = "") -> Transition:
    """Return a transition of a driver."""
    return Transition(at=at, component="driver", node=node, state=state, step=step, reason=reason)


TIMELINE = (
    transition(0, "t4-1", State.PROGRESSING, "cordon-required"),
    transition(0, "t4-2", State.PROGRESSING, "upgrade-required", "waits for a slot"),
    transition(1, "t4-1", State.PROGRESSING, "pod-deletion-required", "default/train"),
    transition(40, "t4-1", State.READY, "upgrade-done"),
    transition(40, "t4-2", State.PROGRESSING, "pod-restart-required"),
    transition(90, "t4-2", State.FAILED, "upgrade-failed", "no PCI bus"),
)


FAILURE = Finding(code="GP501", where="node t4-2", what="no driver", evidence="no PCI bus", fix="look at the node")


def story(**parts: Any) -> RunReport:
    """Return a run that failed on one of two nodes."""
    whole = {
        "command": "apply",
        "inventory": "prod",
        "release": "26.7.0",
        "cluster": "prod-a (v1.34.1)",
        "outcome": Ending.FAILED,
        "began": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "seconds": 100.0,
        "plan": PLAN,
        "hosts": HOSTS,
        "result": replace(RESULT, timeline=TIMELINE, findings=(FAILURE,)),
    }
    return RunReport(**{**whole, **parts})


def test_a_page_tells_what_happened() -> None:
    """Summary, findings with fixes, timeline, components, hosts, changes, waves, and what the validations printed."""
    text = Page(page(story(plan=replace(PLAN, rollout=ROLLOUT)))).text
    for told in (
        *("apply of prod: failed", "Not as declared: driver, toolkit on t4-2. 12 objects written"),
        *("error GP501 no driver", "look at the node", "driver failed: no PCI bus", "driver does not build"),
        *("0.0 to 1.0 s: cordon", "1.0 to 40.0 s: GPU pods leave: default/train", "load kernel module ipmi_msghandler"),
        *("~ DaemonSet gpu-operator-resources/nvidia-dcgm-exporter", "dcgm_exporter: will restart pods on 3 nodes"),
        *("+        image: example.com/dcgm-exporter:4.4.1", "wave 1 (canary): gpu-0001"),
        "Vector addition of 50000 elements",
    ):
        assert told in text, told


def test_a_page_loads_and_runs_nothing() -> None:
    """The page's policy forbids both, and names its one style sheet."""
    html = page(story())
    tags = Page(html).tags
    assert not {"script", "link", "img", "iframe", "object", "form"} & {tag for tag, _ in tags}
    names = {name for _, attributes in tags for name in attributes}
    assert not {"src", "href", "style"} & names
    assert not any(name.startswith("on") for name in names)
    assert "url(" not in html
    assert "@import" not in html
    style = html.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in html
    assert "default-src 'none'" in html


def test_all_values_are_escaped_text() -> None:
    """Names, reasons, logs and findings are foreign text; HTML forbids control characters."""
    state = NodeState(component="driver", node=NASTY, state=State.FAILED, reason=NASTY)
    finding = Finding(code="GP501", where=NASTY, what=NASTY, evidence=NASTY, consequence=NASTY, fix=NASTY)
    evidence = Evidence(component="driver_validation", node=NASTY, pod=NASTY, passed=False, lines=(NASTY,))
    timeline = (transition(0, NASTY, State.FAILED, reason=NASTY),)
    result = RunResult(states=(state,), evidence=(evidence,), findings=(finding,), timeline=timeline)
    plan = replace(PLAN, inventory=NASTY)
    html = page(story(inventory=NASTY, cluster=NASTY, release=NASTY, result=result, plan=plan))
    assert "<script" not in html
    assert find_control_characters(html) == set()
    assert Page(html).text.count('<script>alert("x")</script>&') > 10


@pytest.mark.parametrize("outcome", Ending)
def test_a_run_of_which_little_is_known_has_a_page(outcome: Ending) -> None:
    """The run was interrupted or refused early, or had nothing to do."""
    html = page(story(outcome=outcome, cluster="", plan=None, hosts=None, result=RunResult()))
    text = Page(html).text
    assert "not known" in text
    assert ("Objects written" in text) == (outcome is Ending.SUCCEEDED)  # else the number is not known
    empty = Plan(inventory="prod", release="26.7.0", cluster="prod-a", components=("driver",), changes=())
    assert "Nothing had to change." in Page(page(story(outcome=outcome, plan=empty, result=RunResult()))).text


def test_a_page_of_a_thousand_nodes_is_bounded() -> None:
    """Whatever the number of transitions and the size of messages."""
    states = (State.PROGRESSING, State.PENDING)
    timeline = tuple(
        transition(float(number), f"n{node}", states[number % 2], reason="x" * 50)
        for number in range(100)
        for node in range(1200)
    )
    lines = tuple("y" * 10_000 for _ in range(1000))
    evidence = tuple(replace(EVIDENCE, node=f"n{node}", lines=(str(node), *lines)) for node in range(100))
    findings = tuple(replace(FAILURE, where=f"n{node}", severity=Severity.WARNING) for node in range(1200))
    result = RunResult(timeline=timeline, findings=findings, evidence=evidence[:1])
    html = page(story(result=result))
    assert len(html) < 16_000_000
    assert "Not drawn: 200 waiting." in html
    assert "and 1000 more" in html


def test_colors_have_enough_contrast_in_light_and_dark() -> None:
    """WCAG AA: 4.5 for text, 3 for graphics."""
    css = html_report.files("gpu_provision.output").joinpath("report.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([a-z_]+): (#\w{6})", part)) for part in css.split("@media (prefers", 1))
    doings = {"failed" if activity is Activity.FAILED else activity.name.lower() for activity in Activity}
    for colors in (light, dark):
        assert doings <= colors.keys()
        for ground in ("page", "panel"):
            for text in ("ink", "muted", "good", "bad", "odd"):
                assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
            for drawn in doings | {"focus"}:
                assert contrast(colors[drawn], colors[ground]) >= 3, (drawn, ground)
        for lettered in doings - {"waits", "ready"}:
            assert contrast(colors["on"], colors[lettered]) >= 4.5, lettered


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
