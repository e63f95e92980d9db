"""destroy: what it shows, in which order it works, and when it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision import ExitCode, Finding, RunFailedError, Severity
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.plan import Action, Change, DestroyResult, FieldChange
from tests.cli.harness import PROD, SANDBOX, Fakes, Run

REMOVED = Change(component="driver", action=Action.DELETE, ref=ObjectRef("apps/v1", "DaemonSet", "gpu", "driver"))
TRACE = Change(component="", action=Action.DELETE, ref=ObjectRef("v1", "Pod", "gpu", "nvidia-cuda-validator-x"))
CLEANED = Change(
    component="node_labels",
    action=Action.UPDATE,
    ref=ObjectRef("v1", "Node", "", "t4-1"),
    fields=(FieldChange("metadata.labels.team", "a", None),),
)
LEFT = Finding(code="GP342", what="is still there", where="DaemonSet gpu/driver")
KEPT = Finding(code="GP344", what="these stay", severity=Severity.WARNING)


def result(*findings: Finding) -> DestroyResult:
    return DestroyResult(cluster="test", changes=(REMOVED, CLEANED, TRACE), findings=findings, requests=9, seconds=1.5)


def failed(*findings: Finding) -> RunFailedError:
    error = RunFailedError(*findings)
    error.result = result(*findings)
    return error


def test_a_dry_run_shows_what_would_go_on_cluster_and_hosts(run: Run, fakes: Fakes) -> None:
    fakes.removal = result(KEPT)
    shown = run("destroy", "--dry-run", "-i", SANDBOX)
    assert shown.code == ExitCode.OK
    assert "- DaemonSet gpu/driver" in shown.out
    assert "metadata.labels.team: a -> (none)" in shown.out
    assert "left by components" in shown.out
    assert "Plan: 2 objects to remove, 1 nodes to clean. Nothing was changed." in shown.out
    assert "GP344" in shown.err
    assert fakes.torn_down == [True]


def test_the_cluster_comes_first_and_then_hosts(run: Run, fakes: Fakes) -> None:
    """Nothing to do is said; a real cluster is not touched without a word."""
    assert run("destroy", "-i", PROD).code == ExitCode.USAGE
    assert "There is nothing to remove from the cluster." in run("destroy", "-q", "-i", SANDBOX).out
    fakes.removal = result()
    done = run("destroy", "-q", "-i", SANDBOX)
    assert (done.code, done.err) == (ExitCode.OK, "")
    assert "Nothing of the stack is left. 2 objects removed, 1 nodes cleaned, 9 API requests, 1.5 s." in done.out
    assert fakes.torn_down == [False, False]


def test_a_page_tells_of_a_removal(run: Run, fakes: Fakes, tmp_path: Path) -> None:
    """What went, who was evicted, what is left; one that failed as well."""
    page = tmp_path / "page.html"
    gone = replace(result(), evicted=tuple(f"ml/train-{number}" for number in range(60)))
    broken = failed(LEFT)
    for removal, told in ((gone, "Nothing of the stack is left."), (broken, "Something is left, see below.")):
        fakes.removal = removal
        run("destroy", "-q", "-i", SANDBOX, "--report", page)
        text = page.read_text()
        assert told in text
        assert "- DaemonSet gpu/driver" in text
        assert ("ml/train-49 and 10 more." in text) == (removal is gone)
        assert ("GP342" in text and "GP346" in text) == (removal is broken)
    assert run("destroy", "--dry-run", "-i", SANDBOX, "--report", page).code == ExitCode.USAGE


def test_hosts_wait_until_the_cluster_is_clean(run: Run, fakes: Fakes) -> None:
    """Containers may still use what the host phase did. What was done is shown all the same."""
    fakes.removal = failed(LEFT)
    done = run("destroy", "--json", "-i", SANDBOX)
    assert done.code == ExitCode.FAILED
    assert [error["code"] for error in done.document["errors"]] == ["GP342", "GP346"]
    assert (done.document["succeeded"], done.document["changed"]) == (False, 3)
    fakes.removal = RunFailedError(Finding(code="GP340", what="2 pods use GPUs"))  # nothing was begun
    assert [each["code"] for each in run("destroy", "--json", "-i", SANDBOX).document["errors"]] == ["GP340"]
    assert fakes.torn_down == []


@pytest.mark.parametrize(
    ("words", "torn_down"), [(["--cluster-only"], []), (["--hosts-only"], [False]), (["--limit", "t4-1"], [False])]
)
def test_phases_are_chosen_as_for_apply(run: Run, fakes: Fakes, words: list[str], torn_down: list[bool]) -> None:
    if "--cluster-only" not in words:
        fakes.removal = failed(LEFT)  # it is not asked
    assert run("destroy", "-q", "-i", SANDBOX, *words).code == ExitCode.OK
    assert fakes.torn_down == torn_down


def test_rights_for_a_removal_are_printed_apart(run: Run) -> None:
    """They allow no deletion of namespaces, nor of unnamed objects outside the stack."""
    roles = [item for item in run("rbac", "--destroy", "--json", "-i", PROD).document["manifests"] if "rules" in item]
    (cluster,) = (item for item in roles if item["kind"] == "ClusterRole")
    assert cluster["metadata"]["name"].endswith("-remover")
    deletions = [rule for rule in cluster["rules"] if "delete" in rule["verbs"]]
    assert deletions
    assert all(rule.get("resourceNames") and "namespaces" not in rule["resources"] for rule in deletions)
    assert run("rbac", "--destroy", "--read-only", "-i", PROD).code == ExitCode.USAGE
    assert run("rbac", "--destroy", "--adopt", "-i", PROD).code == ExitCode.USAGE
