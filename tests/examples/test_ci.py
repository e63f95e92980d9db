"""The CI jobs plan a merge request, and apply the kept plan after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.data_file import document
from tests.documents import CHECKOUT, Reader

CI = CHECKOUT / "examples/ci"


def jobs(name: str) -> Any:
    return document((CI / name).read_text(encoding="utf-8"))


def github(job: str) -> list[str]:
    """Return the scripts of a job that run the tool."""
    steps = jobs("github.yaml")["jobs"][job]["steps"]
    return [step["run"] for step in steps if "gpu-provision " in step.get("run", "") and "pipx" not in step["run"]]


def gitlab(job: str) -> list[str]:
    return [line for line in jobs("gitlab.yaml")[job]["script"] if line.startswith("gpu-provision ")]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.close()


def test_a_kept_plan_is_applied_once(reader: Reader) -> None:
    """The second time the cluster is no longer as it was planned."""
    reader.environment["INVENTORY"] = "inventories/sandbox.yaml"
    access = "export KUBECONFIG_WRITER=$(gpu-provision sandbox kubeconfig) GITHUB_STEP_SUMMARY=summary.md"
    secret = f'{access}; export KUBECONFIG_OF_CI=$(cat "$KUBECONFIG_WRITER")'
    assert reader.run(secret, *github("plan"), "cat summary.md").count("to create") == 2
    assert "ready" in reader.run(secret, *github("apply"))
    assert "GP356" in reader.run(access, f"! {gitlab('apply')[0]}")


def test_jobs_of_both_run_the_same_commands() -> None:
    for job in ("plan", "apply"):
        [ours] = [line for script in github(job) for line in script.splitlines() if line.startswith("gpu-provision ")]
        [theirs] = gitlab(job)
        options = [word for word in ours.partition(" |")[0].split() if word.startswith("--")]
        assert options == [word for word in theirs.split() if word.startswith("--")]
