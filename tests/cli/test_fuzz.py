"""Plan files of any content: the command refuses them by a finding, and never calls them its own mistake."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpu_provision.api.jobs import ApplyJob
from gpu_provision.api.options import with_ignored
from gpu_provision.api.results import StackPlan
from gpu_provision.api.selection import select_components
from gpu_provision.cli import plan_file
from gpu_provision.cli.options import find_inventory, load_inventory
from gpu_provision.cli.plan_file import load_plan, seal_digest
from gpu_provision.components import requirements
from gpu_provision.inventory import load
from gpu_provision.model import codes
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.plan import FieldChange, ResourceChange
from gpu_provision.output import findings
from tests import fuzzing
from tests.cli.harness import SANDBOX
from tests.output.samples import EMPTY_PLAN, HOSTS, PLAN, ROLLOUT

INVENTORY = load(SANDBOX)
RESOURCE = ResourceChange(name="gpustack/prod", fields=(FieldChange("spec.release", "a", "b"),))
FEW = replace(ROLLOUT, waves=(ROLLOUT.waves[0], ROLLOUT.waves[-1]), skipped=ROLLOUT.skipped[:1])
WHOLE = replace(PLAN, changes=PLAN.changes[7:], rollout=FEW, resource=RESOURCE)


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A plan file's content with all that one can hold; digests cost nothing."""
    monkeypatch.setattr(hashlib, "scrypt", lambda *_, salt, **__: hashlib.sha256(salt).digest())
    work = ApplyJob(inventory=INVENTORY, limit=("t4-1",), targets=["driver"])
    found = StackPlan(cluster=WHOLE, hosts=HOSTS)
    made: dict[str, Any] = json.loads(
        json.dumps(plan_file.plan_document(work, found, ignored=("GP620",), cluster_uid="u"))
    )
    return made


def apply(path: Path) -> None:
    reviewed = load_plan(path)
    named = reviewed.inventory
    steps = [
        lambda: reviewed.check_inventory(INVENTORY if find_inventory(named) == SANDBOX else load_inventory(named)),
        lambda: with_ignored(INVENTORY, reviewed.ignored),
        lambda: select_components(reviewed.scope["targets"], requirements(INVENTORY)),
        lambda: reviewed.check_cluster(ApplyJob(inventory=INVENTORY, cluster=False)),
        *(lambda hosts=hosts: reviewed.check_hosts(hosts) for hosts in (HOSTS, None)),
        *(lambda plan=plan: reviewed.check_plan(plan) for plan in (WHOLE, EMPTY_PLAN)),
    ]
    for step in steps:
        run_step(step)


def run_step(step: Callable[[], object]) -> None:
    """Do a step; what it refuses can be printed, and is no mistake of the tool."""
    try:
        step()
    except ProvisionError as error:
        refused = error.findings
    else:
        return
    findings.text(refused).encode()
    assert codes.INTERNAL not in {finding.code for finding in refused}


def test_plan_files_of_the_right_seal_and_any_shape(document: dict[str, Any], tmp_path: Path) -> None:
    """Every value may be another one, of another kind, elsewhere or missing."""

    def made(dice: Random) -> Any:
        found = fuzzing.mutate_value(dice, document)
        if not isinstance(found, dict) or dice.random() < 0.05:
            return found
        return {**found, "seal": seal_digest(found)}

    def read(found: Any) -> None:
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(found))
        run_step(lambda: apply(path))

    fuzzing.check_reader(made, read)


def test_a_malformed_plan_file_is_reported_with_the_place(document: dict[str, Any], tmp_path: Path) -> None:
    """A seal is soon made; what was sealed has to be a plan."""
    del document["plan"]["changes"][1]["object"]["kind"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**document, "seal": seal_digest(document)}))
    with pytest.raises(ProvisionError) as caught:
        load_plan(path)
    (finding,) = caught.value.findings
    assert finding.code == codes.NO_PLAN
    assert "$.plan.changes[1].object: 'kind' is a required property" in finding.evidence


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"format": "\\ud800"}', f'{{"version": {"9" * 5000}}}', "\xff\x00"],
    ids=["nested", "surrogate", "endless", "binary"],
)
def test_plan_file_that_json_cannot_hold(tmp_path: Path, text: str) -> None:
    """Nested without end, half a character, a number without end."""
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ProvisionError) as caught:
        load_plan(path)
    assert [finding.code for finding in caught.value.findings] == [codes.NO_PLAN]
