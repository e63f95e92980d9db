"""A command and its function do the same: text, JSON document, findings, scope."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import gpu_provision
from gpu_provision import (
    DestroyResult,
    Finding,
    HostOutcome,
    HostsResult,
    Inventory,
    NodeState,
    PreflightReport,
    RunFailedError,
    RunResult,
    State,
    UsageError,
)
from gpu_provision.api.options import with_timeout
from tests.cli.harness import CHANGE, SANDBOX, Fakes, Run, plan_of

CHANGED = HostsResult(hosts=(HostOutcome(name="t4-1", changes=("nouveau blacklisted",), gpus=1),))
AWAY = HostsResult(hosts=(HostOutcome(name="t4-2", failed=True, errors=(Finding(code="GP685", what="away"),)),))
CONFLICT = Finding(code="GP304", what="a field of another manager")
READY = NodeState(component="driver", node="t4-1", state=State.READY)
COMMANDS: dict[str, dict[str, Any]] = {
    "plan": {},
    "plan --hosts-only": {"hosts_only": True},
    "plan --limit t4-*": {"limit": "t4-*"},
    "apply": {},
    "apply --cluster-only": {"cluster_only": True},
    "status": {},
    "drift": {},
    "history": {},
    "preflight": {},
    "destroy": {},
    "destroy --dry-run": {"dry_run": True},
}


@pytest.fixture
def inventory() -> Inventory:
    return gpu_provision.load(SANDBOX)


def _result(words: str, inventory: Inventory) -> Any:
    try:
        return getattr(gpu_provision, words.split(maxsplit=1)[0])(inventory, **COMMANDS[words])
    except RunFailedError as failure:
        return failure.result


@pytest.mark.parametrize("hosts", [None, CHANGED, AWAY], ids=["no hosts", "a host changes", "a host fails"])
@pytest.mark.parametrize("words", COMMANDS)
def test_a_result_prints_as_its_command(
    words: str, hosts: HostsResult | None, run: Run, fakes: Fakes, inventory: Inventory
) -> None:
    """Print() is the text on stdout, document() the JSON."""
    fakes.hosts = hosts
    fakes.result = RunResult(changed=1, requests=5, seconds=1.0, states=(READY,))
    fakes.preflight_report = PreflightReport(hosts=hosts or HostsResult(), findings=(CONFLICT,))
    command = (*words.split(), "-i", SANDBOX, "-q")
    result = _result(words, inventory)
    assert f"{result}\n" == run(*command).out
    assert json.loads(json.dumps(result.document())) == run(*command, "--json").document


def test_a_failure_has_its_result(fakes: Fakes, inventory: Inventory) -> None:
    """Also after only the host phase; an incomplete removal skips the hosts."""
    fakes.hosts, fakes.result = CHANGED, RunFailedError(CONFLICT)
    with pytest.raises(RunFailedError) as caught:
        gpu_provision.apply(inventory)
    result = caught.value.result
    assert (result.hosts, result.findings, result.succeeded) == (CHANGED, (CONFLICT,), False)
    fakes.result.result = RunResult(changed=3, findings=(CONFLICT,))
    with pytest.raises(RunFailedError) as caught:
        gpu_provision.apply(inventory)
    assert (caught.value.result.cluster, caught.value.result.changed) == (fakes.result.result, 3)
    fakes.removal = RunFailedError(CONFLICT)
    fakes.removal.result = DestroyResult(cluster="sandbox", findings=(CONFLICT,))
    with pytest.raises(RunFailedError) as caught:
        gpu_provision.destroy(inventory)
    assert (fakes.torn_down, len(caught.value.result.findings)) == ([], 2)


@pytest.mark.parametrize("verb", [gpu_provision.plan, gpu_provision.apply, gpu_provision.drift, gpu_provision.destroy])
@pytest.mark.parametrize(
    "arguments",
    [{"limit": []}, {"limit": ""}, {"limit": ["t4-9"]}, {"hosts_only": True, "cluster_only": True}],
    ids=str,
)
def test_an_argument_that_means_nothing_is_an_error(
    verb: Callable[..., object], arguments: dict[str, Any], fakes: Fakes, inventory: Inventory
) -> None:
    """An empty list is not all nodes."""
    with pytest.raises(UsageError):
        verb(inventory, **arguments)
    assert (fakes.applied, fakes.torn_down) == (0, [])


@pytest.mark.parametrize("targets", ["drivr", [], ["driver", "nope"]], ids=str)
def test_targets_are_checked_before_hosts_are_changed(fakes: Fakes, inventory: Inventory, targets: Any) -> None:
    del fakes.hosts  # asking for it would fail
    with pytest.raises(UsageError):
        gpu_provision.apply(inventory, targets=targets)


def test_each_option_reaches_the_run(fakes: Fakes, inventory: Inventory) -> None:
    planned: list[object] = []
    fakes.hosts = CHANGED
    gpu_provision.apply(
        inventory, limit=["t4-*"], targets="device-plugin", take_over=True, ignored="gp620", planned=planned.append
    )
    assert fakes.arguments["part"].nodes == {"t4-1", "t4-2"}
    assert "device_plugin" in fakes.arguments["part"].components
    assert (fakes.arguments["take_over"], fakes.arguments["on_hosts"]) == (True, CHANGED)
    assert planned == [plan_of(CHANGE)]
    changed, inventory_timeout = with_timeout(inventory, 7), with_timeout(inventory, None)
    assert changed.specs.driver.timeout == changed.specs.gfd.timeout == changed.pools["t4"].driver.timeout == 7
    assert inventory_timeout is inventory
    fakes.plan = plan_of()
    assert not gpu_provision.plan(inventory).is_empty
    fakes.hosts = None
    assert gpu_provision.plan(inventory).is_empty
