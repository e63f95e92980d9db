"""Plan files on the command line: a file that is no plan is one finding, and nothing is done."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.cli import plan_file
from gpu_provision.cli.plan_file import seal
from gpu_provision.hosts.result import HostOutcome, HostsResult
from tests.cli.harness import CHANGE, PROD, SANDBOX, Fakes, Ran, Run, plan_of


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "cluster_id", lambda _: "uid")


@pytest.fixture
def saved(run: Run, fakes: Fakes, tmp_path: Path) -> Path:
    """A plan file of a real cluster, with one host and one object to change."""
    fakes.hosts = HostsResult(hosts=(HostOutcome(name="t4-1", changes=("load x",)),))
    path = tmp_path / "plan.json"
    assert run("plan", "-i", PROD, "--out", path).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def edited(path: Path, *, sealed: bool = True, **parts: Any) -> Path:
    """Change a plan file."""
    document = {**json.loads(path.read_text()), **parts}
    path.write_text(json.dumps({**document, "seal": seal(document)} if sealed else document))
    return path


def assert_refused(ran: Ran, fakes: Fakes, code: str) -> None:
    assert (ran.code, fakes.applied) == (1, 0), ran
    assert f"error: {code} " in ran.err
    assert ran.err.count("error: ") == 1


def test_the_file_is_the_consent_and_says_what_takes_part(run: Run, fakes: Fakes, saved: Path) -> None:
    """Without a question, also on a real cluster; the file names the inventory."""
    assert run("apply", saved).code == 0
    assert fakes.applied == 1
    assert run("apply", saved, "-i", PROD, "--timeout", 60).code == 0
    for words in (["--limit", "t4-1"], ["--hosts-only"], ["--cluster-only"], ["--ignore", "GP620"]):
        ran = run("apply", saved, *words)
        assert (ran.code, words[0] in ran.err) == (64, True)


def test_a_file_that_is_no_plan_is_reported(run: Run, fakes: Fakes, saved: Path) -> None:
    """Cut off, edited, some other JSON, of a later version."""
    whole = saved.read_text()
    for text in (whole[:-100], "[]", "{}", "apiVersion: v1", whole.replace("load x", "load y")):
        saved.write_text(text)
        assert_refused(run("apply", saved), fakes, "GP352")
    saved.write_text(whole)
    assert_refused(run("apply", edited(saved, version=2)), fakes, "GP353")
    assert run("apply", saved.with_name("none.json")).code == 64


def test_a_moved_cluster_inventory_or_host_is_named(
    run: Run, fakes: Fakes, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(run("apply", saved, "-i", SANDBOX), fakes, "GP355")
    fakes.hosts = HostsResult(hosts=(HostOutcome(name="t4-1", changes=("load y",)),))
    ran = run("apply", saved)
    assert_refused(ran, fakes, "GP356")
    assert "host t4-1: load y, planned was: load x" in ran.err
    monkeypatch.setattr(plan_file, "cluster_id", lambda _: "other")
    assert_refused(run("apply", saved), fakes, "GP354")


@pytest.mark.parametrize("phases", [(), ("--cluster-only",)])
def test_a_changed_cluster_is_reported(run: Run, fakes: Fakes, tmp_path: Path, phases: tuple[str, ...]) -> None:
    """Before the first host is touched; and where no host is, right before the first write."""
    path = tmp_path / "plan.json"
    assert run("plan", "-i", PROD, "--out", path, *phases).code == 0
    fakes.plan = plan_of(CHANGE, replace(CHANGE, ref=CHANGE.ref._replace(name="y")))
    ran = run("apply", path)
    assert_refused(ran, fakes, "GP356")
    assert "ConfigMap gpu-operator-resources/y would be created, which was not planned" in ran.err


def test_a_plan_that_cannot_be_applied_is_not_written(run: Run, fakes: Fakes, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    fakes.hosts = HostsResult(hosts=(HostOutcome(name="t4-1", failed=True, reason="silent"),))
    ran = run("plan", "-i", SANDBOX, "--out", path)
    assert (ran.code, path.exists(), "was not written" in ran.err) == (1, False, True)
    assert run("plan", "-i", SANDBOX, "--out", path, "--offline").code == 64


def test_a_part_of_a_plan_is_kept_as_that_part(run: Run, fakes: Fakes, tmp_path: Path) -> None:
    """What narrowed the plan narrows what is applied, and nothing else can be given beside."""
    path = tmp_path / "part.json"
    assert run("plan", "-i", PROD, "--target", "device-plugin", "--limit", "gpu-*", "--out", path).code == 0
    assert run("apply", path).code == 0
    part = fakes.arguments["part"]
    assert part.components & {"device_plugin", "dcgm_exporter"} == {"device_plugin"}
    assert part.nodes
    assert run("apply", path, "--target", "driver").code == 64


@pytest.mark.parametrize("name", ["nowhere/plan.json", ".", ""])
def test_an_unwritable_plan_file_is_refused_before_any_request(
    run: Run, fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """And nothing is left beside where it was to go."""
    monkeypatch.chdir(tmp_path)
    fakes.plan = AssertionError("the cluster was asked")
    ran = run("plan", "-i", PROD, "--out", name)
    assert (ran.code, ran.err.count("GP007")) == (64, 1)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_written_to_and_not_replaced(run: Run, fakes: Fakes, tmp_path: Path) -> None:
    """A pipe here; /dev/full and /dev/stdout would be gone for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fakes.plan = plan_of()
    with os.fdopen(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb") as reader:
        assert run("plan", "-i", PROD, "--out", pipe).code == 0
        assert json.loads(reader.read1())["format"] == "gpu-provision plan"
    assert pipe.is_fifo()
