"""What the commands print and call."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import click
import pytest
import yaml

from gpu_provision import ExitCode, Finding
from gpu_provision.api.jobs import read_only_listener
from gpu_provision.api.selection import select_nodes
from gpu_provision.cli import output, plan_file, root
from gpu_provision.cli.root import SuggestingGroup
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.inventory import load
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.plan import Action, Change
from gpu_provision.model.progress import Event, State
from tests.cli.harness import PROD, SANDBOX, Fakes, Run, plan_of


def _hosts(*hosts: HostOutcome) -> HostsResult:
    return HostsResult(hosts=hosts)


COMMANDS = """validate, render, rbac, plan --offline --cluster-only, plan, apply, destroy, destroy --dry-run, preflight,
status, drift, history, history show 3, diff 3, rollback 3, unlock, releases, releases 23.9.0,
releases 25.10.1 26.7.0, sandbox status, sandbox kubeconfig"""


@pytest.mark.parametrize("command", re.split(r",\s", COMMANDS))
def test_every_command_prints_one_document_that_fits_the_schema(
    run: Run, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Also those that fail."""
    words = command.split()
    fakes.hosts = _hosts(HostOutcome(name="t4-1", changes=("load ipmi_msghandler",), gpus=1))
    fakes.history = History((Record(id="a", number=3, text=SANDBOX.read_text(encoding="utf-8")),))
    monkeypatch.setenv("GPU_PROVISION_INVENTORY", str(SANDBOX))
    document = run(*words, "--json").document
    assert document["command"] == " ".join(word for word in words if word.isalpha())


def test_explain_prints_title_cause_and_remedy(run: Run) -> None:
    """As text and as a document; a code in small letters is the same code."""
    text, found = run("explain", "gp501").out, run("explain", "GP501", "--json").document
    assert set(found["explanation"]) == {"code", "title", "cause", "remedy"}
    assert all(part in text for part in found["explanation"].values())


def test_rbac_prints_roles_and_the_bindings_that_are_asked_for(run: Run) -> None:
    """Without a subject there is no binding; a note on stderr says so."""
    alone = run("rbac", "-i", SANDBOX)
    assert {item["kind"] for item in yaml.safe_load_all(alone.out)} == {"Namespace", "ClusterRole", "Role"}
    assert "--service-account" in alone.err
    words = ("--user", "bob", "--group", "ops", "--service-account", "ci:robot", "--read-only", "--json")
    manifests = run("rbac", "-i", SANDBOX, *words).document["manifests"]
    subjects = next(item for item in manifests if item["kind"] == "ClusterRoleBinding")["subjects"]
    found = [(one["kind"], one["name"], one.get("namespace")) for one in subjects]
    assert found == [("User", "bob", None), ("Group", "ops", None), ("ServiceAccount", "robot", "ci")]


def test_render_writes_files_and_removes_its_own_stale_ones(run: Run, tmp_path: Path) -> None:
    """A component that is off leaves no file behind; other people's files stay."""
    folder = tmp_path / "out"
    run("render", "-i", SANDBOX, "--output", folder)
    first = sorted(path.name for path in folder.iterdir())
    (folder / "99-old.yaml").write_text((folder / first[0]).read_text())
    (folder / "mine.yaml").write_text("a: 1\n")
    run("render", "-i", SANDBOX, "--output", folder)
    assert sorted(path.name for path in folder.iterdir()) == [*first, "mine.yaml"]
    assert first[0] == "01-prerequisites.yaml"


def test_the_next_command_takes_the_same_part(
    run: Run, fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copied command does what the plan showed; a plan file knows its scope, but not the kubeconfig."""
    fakes.hosts = None
    monkeypatch.setattr(plan_file, "cluster_id", lambda _: "uid")
    words = ("plan", "-i", SANDBOX, "--limit", "t4-*", "--target", "driver", "--cluster-only")
    following = f"Next: gpu-provision apply -i {SANDBOX} --limit 't4-*' --target driver --cluster-only\n"
    assert following in run(*words).out
    assert "Next:" not in run(*words, "-q").out
    place = tmp_path / "my plan.json"
    ran = run("plan", "-i", PROD, "--context", "mine", "--limit", "gpu-*", "--out", place)
    assert f"Next: gpu-provision apply '{place}' --context mine\n" in ran.out


def test_a_failed_host_holds_the_cluster_phase_back(run: Run, fakes: Fakes) -> None:
    """And says which host, why, how to go on, and what was done on the others."""
    away = Finding(code="GP685", where="t4-2", what="no answer")
    fakes.hosts = _hosts(HostOutcome(name="t4-1"), HostOutcome(name="t4-2", failed=True, errors=(away,)))
    ran = run("apply", "-i", SANDBOX)
    assert (ran.code, fakes.applied) == (ExitCode.FAILED, 0)
    assert "GP685 t4-2: no answer" in ran.err
    assert ("held back" in ran.err, "t4-1" in ran.out) == (True, True)
    document = run("apply", "-i", SANDBOX, "--json").document
    assert [host["failed"] for host in document["hosts"]] == [False, True]
    assert [error["code"] for error in document["errors"]] == ["GP685", "GP604"]


def test_password_of_sudo_is_asked_for_once_and_not_shown(
    run: Run, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, so that JSON stays JSON."""
    given: list[str] = []
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: "geheim")
    monkeypatch.setattr("gpu_provision.inventory.pyinfra_inventory.set_sudo_password", given.append)
    fakes.hosts = _hosts(HostOutcome(name="t4-1"))
    ran = run("apply", "-i", SANDBOX, "--hosts-only", "-K", "--json")
    assert given == ["geheim"]
    assert ran.document["hosts"]
    assert "geheim" not in ran.out + ran.err


NO_HOST_PHASE = {
    "host_prerequisites are off": ("host_prerequisites:\n", "host_prerequisites:\n  enabled: false\n"),
    "Machine Config Operator": ("cluster:\n", "cluster:\n  platform: openshift\n"),
}


@pytest.mark.parametrize("why", NO_HOST_PHASE)
@pytest.mark.parametrize(
    "command", ["plan --detailed-exitcode", "apply -y", "destroy -y", "destroy --dry-run", "drift"]
)
def test_a_run_that_reaches_no_host_says_why(run: Run, tmp_path: Path, command: str, why: str) -> None:
    """An empty output, or "everything is as declared", would look like a success of something."""
    file, text = tmp_path / "off.yaml", PROD.read_text(encoding="utf-8")
    file.write_text(text.replace(*NO_HOST_PHASE[why], 1), encoding="utf-8")
    told = run(*command.split(), "-i", file, "--hosts-only")
    assert told.code == ExitCode.OK
    assert told.out.splitlines()[-1] == "No host takes part. Nothing was changed."
    text = " ".join(f"{told.out} {told.err}".split())
    assert (text.count("GP617"), why in text) == (1, True)
    [warning] = run(*command.split(), "-i", file, "--hosts-only", "--json").document["warnings"]
    assert (warning["code"], why in warning["what"]) == ("GP617", True)
    assert ("gpu-provision plan" in warning["fix"]) == ("Operator" in why)


def test_an_absurd_inventory_gets_twenty_findings_and_a_count(run: Run, tmp_path: Path) -> None:
    """As text and as a document; every line is where the file says so."""
    file = tmp_path / "absurd.yaml"
    file.write_text("name: a\ncluster: {}\n" + "".join(f"key{each}: 1\n" for each in range(2_000)), encoding="utf-8")
    ran = run("validate", "-i", file)
    assert ran.code == ExitCode.INVALID_INVENTORY
    assert ran.out.splitlines()[-1] == f"{file}: 1,980 more findings"
    document = run("validate", "-i", file, "--json").document
    places = [each["where"].split(" ")[0] for each in document["errors"]]
    assert places == [f"{file}:{line}" for line in range(3, 24)]
    assert (document["errors"][-1]["code"], document["unshown"]) == ("GP114", 1_980)
    assert "2,000 findings" in document["errors"][-1]["what"]


def test_revalidation_refuses_a_cluster_with_pending_changes(run: Run, fakes: Fakes) -> None:
    """Validating changes nothing but runs the validations; that a startup taint ends follows from one that passes."""
    ran = run("validate", "-i", SANDBOX, "--gpus")
    assert ran.code == ExitCode.FAILED
    assert "GP010" in ran.err
    node = ObjectRef("v1", "Node", "", "t4-1")
    fakes.plan = plan_of(Change(component="startup_taint", action=Action.UPDATE, ref=node))
    assert run("validate", "-i", SANDBOX, "--gpus").code == ExitCode.OK
    fakes.plan = replace(plan_of(), findings=(Finding(code="GP434", what="the resource is being deleted"),))
    refused = run("validate", "-i", SANDBOX, "--gpus", "--json")
    assert (refused.code, [each["code"] for each in refused.document["errors"]]) == (ExitCode.FAILED, ["GP434"])
    assert fakes.applied == 1


LIMITS = {
    "t4-1": ("t4-1",),
    "t4-*,cpu-1": ("t4-1", "t4-2", "cpu-1"),
    "pool_h100": ("h100-1",),
    "gpu": ("t4-1", "t4-2", "h100-1"),
    "nodes": ("t4-1", "t4-2", "h100-1", "cpu-1", "control-1"),
}


@pytest.mark.parametrize("option", LIMITS)
def test_limit_takes_names_patterns_groups_and_files(option: str, tmp_path: Path) -> None:
    """In the inventory's order; a file has one a line, and may have comments."""
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("# from the last run\n\n" + option.replace(",", "\n"))
    assert select_nodes(load(SANDBOX), option) == select_nodes(load(SANDBOX), f"@{hosts}") == LIMITS[option]
    assert select_nodes(load(SANDBOX), None) == ()


def test_options_may_stand_before_the_subcommand_of_history(run: Run, fakes: Fakes) -> None:
    """A run that is not on record is wrong usage; a damaged one is a warning."""
    fakes.history = History((Record(id="a", number=3, text="name: x\n"),), damaged=("b",))
    listed = run("history", "-i", SANDBOX)
    assert "GP334" in listed.err
    assert listed.out.splitlines()[1].startswith("3 ")
    assert run("history", "-i", SANDBOX, "show", "3", "--text").out == "name: x\n"
    assert run("history", "show", "3", "-i", SANDBOX).out.startswith("Run 3\n")
    for words in (["history", "show", "4"], ["diff", "4"], ["rollback", "4"], ["rollback"]):
        assert run(*words, "-i", SANDBOX).code == ExitCode.USAGE


def test_a_diff_is_between_runs_or_up_to_the_file(run: Run, fakes: Fakes) -> None:
    """The exit code tells of a difference only if it is asked to."""
    text = SANDBOX.read_text(encoding="utf-8")
    old = Record(id="a", number=1, text=text.replace("v0.20.0", "v0.19.3"))
    invalid = Record(id="c", number=3, text="weather: fine\n")
    fakes.history = History((old, Record(id="b", number=2, text=text), invalid))
    found = run("diff", "1", "-i", SANDBOX)
    assert "+  version: v0.20.0" in found.out
    assert "k8s-device-plugin:v0.19.3 -> " in found.out
    assert run("diff", "1", "2", "-i", SANDBOX, "--json").document["changes"]
    codes = [run("diff", number, "2", "-i", SANDBOX, "--detailed-exitcode").code for number in ("1", "2")]
    assert codes == [ExitCode.DIFFERENCES, ExitCode.OK]
    assert "GP336" in run("diff", "1", "3", "-i", SANDBOX).err, "what is not valid today can still be compared as text"


def test_a_rollback_says_that_the_file_names_other_versions(run: Run, fakes: Fakes) -> None:
    """A dry run changes nothing; the inventory of the run is what is applied."""
    text = SANDBOX.read_text(encoding="utf-8").replace("v0.20.0", "v0.19.3")
    good = Record(id="a", number=1, ending=Ending.SUCCEEDED, release="26.7.0", text=text)
    fakes.history = History((good, Record(id="b", number=2, text="name: x\n")))
    shown = run("rollback", "-i", SANDBOX, "--dry-run")
    assert (shown.code, fakes.applied) == (ExitCode.OK, 0)
    assert "Back to the versions of run 1" in shown.err
    done = run("rollback", "1", "-i", SANDBOX)
    assert (done.code, fakes.applied) == (ExitCode.OK, 1)
    assert fakes.arguments["rollback_to"] == 1
    assert "gpu-provision diff 1" in done.out


def test_the_list_of_commands_names_what_is_there_in_a_line_each(run: Run) -> None:
    """Commands that are imported when they are asked for are where the list says, and their lines fit."""
    group = root.cli
    assert isinstance(group, SuggestingGroup)
    listed = {line.rstrip() for line in run("--help").out.splitlines()}
    longest = max(map(len, group.list_commands(click.Context(group))))
    for name, command in group.lazy_commands.items():
        assert group.get_command(click.Context(group), name) is not None
        assert f"  {name:{longest}}  {command.summary}" in listed


def test_a_run_without_a_question_prints_its_changes(run: Run, fakes: Fakes) -> None:
    """On stderr, for the log of a CI job; not with --quiet, nor if there is nothing."""
    assert "+ ConfigMap gpu-operator-resources/x" in run("apply", "-y", "-i", PROD).err
    assert "ConfigMap" not in run("apply", "-y", "-q", "-i", PROD).err
    fakes.plan = plan_of()
    assert "Inventory" not in run("apply", "-y", "-i", PROD).err


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (["apply"], "Apply these changes to cluster sandbox, context gpu-prod and 1 host?"),
        (["apply", "--hosts-only"], "Apply these changes to 1 host?"),
        (["apply", "--cluster-only"], "Apply these changes to cluster sandbox, context gpu-prod?"),
        (["destroy", "--hosts-only"], "Remove all of this from 1 host?"),
    ],
)
def test_a_question_names_what_is_changed(
    run: Run, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, words: list[str], question: str
) -> None:
    """The plan's heading is a screen above by then, and is not shown again by the run."""
    asked: list[str] = []
    fakes.hosts = _hosts(HostOutcome(name="t4-1", changes=("load ipmi_msghandler",), gpus=1))
    if "--cluster-only" in words:
        fakes.hosts = None
    monkeypatch.setattr(output, "require_terminal", lambda *_, **__: None)
    monkeypatch.setattr(output, "confirm", lambda text: bool(asked.append(text)) or True)
    ran = run(*words, "-i", PROD)
    assert asked == [question]
    assert "Inventory" not in ran.err


def test_hosts_that_are_only_read_make_no_progress() -> None:
    """A plan that calls a host ready, of which it has just said that it is not, is not believed again."""
    heard: list[Event] = []
    for state in (State.PROGRESSING, State.READY, State.FAILED):
        read_only_listener(heard.append)(Event(component="host_prerequisites", node="t4-1", state=state, message="x"))
    expected = [("", State.PROGRESSING), ("", State.PROGRESSING), ("host_prerequisites", State.FAILED)]
    assert [(event.component, event.state) for event in heard] == expected
