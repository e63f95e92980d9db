"""No text from elsewhere steers the terminal of a user: every command shows control characters instead."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gpu_provision.cli import output
from gpu_provision.cli import output as confirmation
from gpu_provision.cli.display import Display
from gpu_provision.cli.operator import event_line as _text
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding, RunFailedError
from gpu_provision.model.history import History, Record
from gpu_provision.model.plan import Action, Change, DestroyResult, Difference, Drift, FieldDrift, Origin, Writer
from gpu_provision.model.progress import Event, LockHolder, State
from gpu_provision.operator.telemetry import StackEvent
from gpu_provision.reconcile.preflight import PreflightReport
from tests.cli.harness import SANDBOX, Fakes, Run
from tests.hostile import MIXED, MIXED_SHOWN, TEXTS, find_control_characters
from tests.output.samples import PLAN, RESULT, STATUS, WARNING

Plant = Callable[[Fakes, str], None]
OWN_COLOR = re.compile(r"\x1b\[(?:0|1|2|31|32|33|36)m")
_OURS = frozenset({"api_version", "code", "component", "components", "inventory", "kind", "path"})
"""Names of fields that hold the tool's own words."""


def planted(value: Any, text: str) -> Any:
    """Return a value with a text in place of every word that comes from elsewhere."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return text
    if is_dataclass(value) and not isinstance(value, type):
        own = (each.name for each in fields(value) if each.name not in _OURS)
        return replace(value, **{name: planted(getattr(value, name), text) for name in own})
    if isinstance(value, tuple):
        found = [each if name in _OURS else planted(each, text) for name, each in _named(value)]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    return {key: planted(each, text) for key, each in value.items()} if isinstance(value, dict) else value


def _named(value: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return list(zip(getattr(value, "_fields", ("",) * len(value)), value, strict=True))


REF = ObjectRef("v1", "ConfigMap", "n", "x")
FINDING = Finding(code="GP501", where="x", what="x", evidence="x", consequence="x", fix="x")
LOCK = LockHolder(holder="x", since="x")
UPDATE = Change(component="driver", action=Action.UPDATE, ref=REF, effects=("x",), manifest={"data": {"a": "x"}})
RECORD = Record(id="a", number=3, holder="x", release="x", reason="x", began="x", text="x")
FIELD = FieldDrift(path="data.a", declared="x", found="x", origin=Origin.DRIFT, writer=Writer("x", "x"))
DIFFERENCE = Difference(
    component="driver", ref=REF, action=Action.UPDATE, origin=Origin.DRIFT, fields=(FIELD,), notes=("x",)
)
SAMPLES: dict[str, Any] = {
    "lock": LOCK,
    "status": replace(STATUS, lock=LOCK),
    "result": replace(RESULT, findings=(FINDING,)),
    "plan": replace(PLAN, changes=(*PLAN.changes, UPDATE), findings=(WARNING,)),
    "hosts": HostsResult(hosts=(HostOutcome(name="t4-1", changes=("x",), gpus=1),), findings=(WARNING,)),
    "preflight_report": PreflightReport(hosts=HostsResult(), findings=(FINDING,)),
    "drift": Drift(inventory="sandbox", release="x", cluster="x", differences=(DIFFERENCE,), findings=(WARNING,)),
    "removal": DestroyResult(cluster="x", changes=(UPDATE,), findings=(WARNING,), evicted=("x",)),
}


def sample(name: str) -> Plant:
    """Return what lets the library answer with a sample."""
    return lambda fakes, text: setattr(fakes, name, planted(SAMPLES[name], text))


def _error(fakes: Fakes, text: str) -> None:
    fakes.plan = RunFailedError(planted(FINDING, text))


def _crash(fakes: Fakes, text: str) -> None:
    fakes.plan = ValueError(text)


def _history(fakes: Fakes, text: str) -> None:
    record = replace(planted(RECORD, text), text=f"# {text}\nname: x\n", lacks="", only="", source="", plan="")
    fakes.history = History((record,), damaged=(text,))


SOURCES: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "holder of a lease": (sample("lock"), ("unlock", "--yes")),
    "conditions, names, logs": (sample("status"), ("status",)),
    "reasons and logs of a run": (sample("result"), ("apply", "--yes")),
    "Events in an error": (_error, ("plan",)),
    "an exception": (_crash, ("plan", "-vv")),
    "objects of a plan": (sample("plan"), ("plan",)),
    "values in a diff": (sample("plan"), ("plan", "--diff")),
    "what hosts say": (sample("hosts"), ("plan",)),
    "what preflight finds": (sample("preflight_report"), ("preflight",)),
    "records of runs": (_history, ("history",)),
    "one record": (_history, ("history", "show", "3")),
    "text of a record": (_history, ("history", "show", "3", "--text")),
    "fields and writers": (sample("drift"), ("drift",)),
    "objects to remove": (sample("removal"), ("destroy", "--dry-run")),
    "objects removed": (sample("removal"), ("destroy", "--yes")),
}


@pytest.mark.parametrize(("plant", "words"), SOURCES.values(), ids=SOURCES)
def test_a_command_steers_no_terminal(
    run: Run, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, plant: Plant, words: tuple[str, ...]
) -> None:
    """Colors are the tool's own: a text with the code of one is shown as all others, columns stay. JSON is exact."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    red, red_shown = TEXTS["the tool's own red"]
    plant(fakes, f"{MIXED}{red}")
    colored, plain = run(*words, "-i", SANDBOX), run(*words, "-i", SANDBOX, "--no-color")
    assert f"{MIXED_SHOWN}{red_shown}" in colored.out + colored.err
    assert find_control_characters(plain.out + plain.err) == set()
    assert find_control_characters(OWN_COLOR.sub("", colored.err)) == set()
    assert OWN_COLOR.sub("", colored.out) == plain.out
    document = run(*words, "-i", SANDBOX, "--json", "--no-color")
    assert find_control_characters(document.out + document.err) == set()
    assert document.out.isascii()
    assert MIXED in "\n".join(_strings(document.document)) or plant is _crash  # whose traceback only -vv has


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _strings(each)]
    if isinstance(value, list):
        return [text for each in value for text in _strings(each)]
    return [value] if isinstance(value, str) else []


def test_names_of_files_and_words_are_shown(run: Run, tmp_path: Path) -> None:
    """Of a file that is not there, one that is no inventory, an option, a command, a context."""
    (tmp_path / MIXED).write_text("- 1\n")
    for words in (
        ("validate", "-i", tmp_path / "no" / MIXED),
        ("validate", "-i", tmp_path / MIXED),
        ("validate", MIXED),
        (MIXED,),
        ("plan", "-i", SANDBOX, "--kubeconfig", tmp_path / MIXED, "--context", MIXED),
    ):
        ran = run(*words)
        assert ran.code != 0
        assert find_control_characters(ran.out + ran.err) == set()
        assert MIXED_SHOWN in ran.out + ran.err


def test_values_of_an_inventory_are_shown(run: Run, tmp_path: Path) -> None:
    """YAML has escapes for all of them; a finding repeats the value, and the name of a key."""
    document = yaml.safe_load(SANDBOX.read_text())
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump({**document, "release": MIXED, MIXED: 1}))
    ran = run("validate", "-i", path)
    assert find_control_characters(ran.out + ran.err) == set()
    assert MIXED_SHOWN in ran.out + ran.err
    assert json.dumps(MIXED) in ran.out + ran.err


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(("text", "shown"), TEXTS.values(), ids=TEXTS)
def test_progress_is_shown(text: str, shown: str, live: bool) -> None:  # noqa: FBT001 - data
    """A line of a log, and the picture on a terminal, whose own sequences are the only ones."""
    stream = io.StringIO()
    display = Display(stream, live=live)
    display(Event(component="driver", node=text, state=State.PROGRESSING, message=text))
    display(Event(component="driver", node=text, state=State.FAILED, message=text))
    display(Event(component="toolkit", node=text, state=State.PROGRESSING, message=text))
    display.tick()
    told = re.sub(r"\r|\x1b\[[?\d]*[AKhl]", "", stream.getvalue()) if live else stream.getvalue()
    assert find_control_characters(told) == set()
    assert shown in told or live


@pytest.mark.parametrize("live", [False, True])
def test_a_message_cannot_forge_a_line_of_progress(live: bool) -> None:  # noqa: FBT001 - data
    """Nor move what a terminal draws next."""
    stream = io.StringIO()
    display = Display(stream, live=live)
    display(Event(component="driver", node="t4-1", state=State.FAILED, message="a\n= driver t4-1 ready"))
    display(Event(component="", node="", state=State.PROGRESSING, message="b\n= driver t4-1 ready"))
    display.tick()
    lines = [r"! driver t4-1 failed: a\n= driver t4-1 ready", r"b\n= driver t4-1 ready"]
    assert all(line in stream.getvalue() for line in lines)


def test_a_question_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a context and the address of a server are of a kubeconfig."""
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    assert confirmation.confirm(f"On {MIXED}?")
    assert asked == [f"On {MIXED_SHOWN}?"]


def test_a_cell_cannot_forge_a_row(run: Run, fakes: Fakes) -> None:
    sample("status")(fakes, "a\nb")
    ran = run("status", "-i", SANDBOX)
    assert not [line for line in ran.out.splitlines() if line.startswith("b  ")]


def test_a_line_of_the_operators_log_is_one_line() -> None:
    assert _text(StackEvent(reason="Failed", message="a\nb", stack="prod")).endswith(r" prod: Failed: a\nb")


def test_the_log_file_holds_no_escape_sequence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kept = output.log_traceback(ValueError("a\x1b[2Jb\ud800"), command="plan")
    assert kept is not None
    assert r"a\x1b[2Jb\ud800" in kept.read_text(encoding="utf-8")
