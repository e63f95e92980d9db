"""The way back, and what stands in it."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import cast

import pytest
import yaml

from gpu_provision.history import rollback, store
from gpu_provision.history import rollback as module
from gpu_provision.history.restore import redact
from gpu_provision.history.rollback import active_inventory, find_rollback_target, version_warning
from gpu_provision.inventory import load
from gpu_provision.kube.client import KubeClient
from gpu_provision.model.cluster import ClusterFacts, RenderContext
from gpu_provision.model.findings import (
    Finding,
    ForbiddenError,
    InvalidInventoryError,
    RunFailedError,
    Severity,
    UsageError,
)
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.rollout_policy import OnFailure
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Desired
from tests.components.builders import inventory
from tests.documents import CHECKOUT
from tests.inventory.planted import VALID

NOW = load(CHECKOUT / "inventories" / "sandbox.yaml")
RUN = Record(id="a", number=3, ending=Ending.SUCCEEDED, tool="0.0.1", text=redact(NOW.text))


def test_there_has_to_be_something_to_go_back_to() -> None:
    other = replace(RUN, id="b", number=4, text="name: other\n")
    assert rollback.default_target(History((RUN, other)), NOW) == RUN
    reads_otherwise = replace(RUN, number=4, text=f"# the same\n{RUN.text}")
    for found in (
        History(()),
        History((RUN,)),
        History((RUN, replace(RUN, number=4))),
        History((RUN, reads_otherwise)),
    ):
        with pytest.raises(UsageError, match="GP331"):
            rollback.default_target(found, NOW)


def test_settings_that_stay_as_now_are_named_in_a_line() -> None:
    """Without their values, which may be secrets."""
    planted = f"{NOW.text}{VALID[: VALID.index('pools:')]}".replace("device_plugin: {", "device_plugin: {version: v1, ")
    text = yaml.safe_dump(yaml.safe_load(planted) | {"device_plugin": {"version": "v0.19.3", "image": "evil"}})
    found, (finding,) = rollback.restore_inventory(replace(RUN, text=text), NOW)
    assert found.specs.device_plugin.image.version == "v0.19.3"
    assert found.specs.device_plugin.image.image == NOW.specs.device_plugin.image.image
    assert (finding.code, finding.severity) == ("GP335", Severity.WARNING)
    assert finding.evidence.startswith("registry, image_pull_secrets, proxy.http_proxy, host_prerequisites.")
    assert finding.evidence.endswith(" more")
    assert "evil" not in str(finding)


def test_an_unknown_version_is_one_finding_that_says_what_to_do() -> None:
    """Which setting, which value, of which run; nothing of the run is taken."""
    run = replace(RUN, text=NOW.text + 'driver: {version: "570.1\\n; id"}\ngfd: {version: v0}\n')
    with pytest.raises(RunFailedError) as caught:
        rollback.restore_inventory(run, NOW)
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("GP338", "run 3 driver.version, gfd.version")
    assert finding.evidence == "driver.version: '570.1\\n; id'; gfd.version: 'v0'"
    assert NOW.path in finding.fix


def test_an_inventory_that_was_made_in_python_has_no_way_back() -> None:
    """A record is never taken in its place."""
    with pytest.raises(RunFailedError, match="made in Python"):
        rollback.restore_inventory(RUN, replace(NOW, text=""))


@pytest.mark.parametrize(
    ("run", "error", "code"),
    [
        (replace(RUN, text="", lacks="its inventory was made in Python"), RunFailedError, "GP332"),
        (replace(RUN, text="{"), InvalidInventoryError, "GP336"),
        (replace(RUN, text=f'driver: {{version: "440.64.00"}}\n{NOW.text}'), InvalidInventoryError, "GP336"),
    ],
)
def test_obstacles_to_a_rollback_are_reported(run: Record, error: type[Exception], code: str) -> None:
    now = replace(NOW, text=NOW.text.replace("model: T4", "model: L40S"))
    with pytest.raises(error, match=code):
        rollback.restore_inventory(run, now)


NO_CLUSTER = cast("KubeClient", None)
STACK = replace(inventory(), text="name: prod\n")
LAST = Record(id="a", number=7, ending=Ending.SUCCEEDED, tool="0.0.9", text="name: prod\n")


def said(monkeypatch: pytest.MonkeyPatch, *records: Record) -> list[str]:
    monkeypatch.setattr(store, "read_records", lambda *_: History(records))
    found = version_warning(NO_CLUSTER, STACK)
    assert all(finding.severity is Severity.WARNING and finding.code == "GP381" for finding in found)
    return [finding.what for finding in found]


def test_the_same_inventory_differs_because_of_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another inventory may differ for that; runs that left the cluster alone, and older ones, do not count."""
    (same,) = said(monkeypatch, LAST)
    assert same.startswith(f"the last run was of gpu-provision 0.0.9, and this is {version('gpu-provision')}")
    assert same.endswith("that is why something differs")
    (other,) = said(monkeypatch, replace(LAST, text="name: other\n"))
    assert other.endswith("some of this may differ for that")
    ours = replace(LAST, number=8, tool=version("gpu-provision"))
    assert said(monkeypatch, LAST, ours) == []
    assert said(monkeypatch, LAST, replace(ours, only="hosts")) == [same]
    assert said(monkeypatch) == []

    def refuse(*_: object) -> History:
        raise ForbiddenError(Finding(code="GP303", what="no"))

    monkeypatch.setattr(store, "read_records", refuse)
    assert version_warning(NO_CLUSTER, STACK) == (), "a plan needs no record"


OWN = Record(id="own", number=9, text=NOW.text)
DRIVER = Record(id="a", number=1, ending=Ending.SUCCEEDED, text=f'{NOW.text}driver: {{version: "580.126.20"}}\n')
BACK = replace(DRIVER, id="d", number=10, back_to=1)
PLUGIN = replace(DRIVER, id="b", number=2, text=NOW.text.replace("v0.20.0", "v0.19.3"))


def _look(on_failure: OnFailure) -> tuple[RenderContext, Desired]:
    return prepare(replace(NOW, rollout=replace(NOW.rollout, on_failure=on_failure)), ClusterFacts())


def test_it_goes_back_to_other_drivers_that_were_well() -> None:
    found, told = find_rollback_target(*_look(OnFailure.ROLLBACK), History((DRIVER,)), OWN)
    assert found
    assert told == ()
    assert (found.name, found.record, found.inventory.specs.driver.image.version) == ("run 1", DRIVER, "580.126.20")


@pytest.mark.parametrize(
    ("earlier", "told"),
    [
        ((), []),
        ((replace(DRIVER, ending=Ending.FAILED),), []),
        ((DRIVER, PLUGIN), []),
        ((DRIVER, replace(PLUGIN, text=f"{NOW.text}driver: {{env: {{A: b}}}}\n")), ["GP335"]),
        ((replace(DRIVER, text="{"),), ["GP106", "GP336"]),
        ((DRIVER, replace(PLUGIN, text=f'{NOW.text}driver: {{version: "570.99.01"}}\n')), ["GP338"]),
    ],
    ids=["no run", "failed", "the same drivers", "only settings", "damaged", "an unknown version"],
)
def test_without_such_a_run_there_is_no_way(earlier: tuple[Record, ...], told: list[str]) -> None:
    """The last good run decides: going further back would undo more than what failed. Findings say why."""
    found, findings = find_rollback_target(*_look(OnFailure.ROLLBACK), History(earlier), OWN)
    assert (found, [each.code for each in findings]) == (None, told)


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ((DRIVER, OWN, BACK), (1, "580.126.20")),
        ((DRIVER, OWN, BACK, replace(BACK, id="e", number=11, only="hosts", text=PLUGIN.text)), (1, "580.126.20")),
        ((OWN, BACK), (1, "580.126.20")),
        ((DRIVER, OWN), None),
    ],
    ids=["went back", "hosts were changed since", "the first one is off the record", "did not go back"],
)
def test_what_a_stack_went_back_to_is_on_record(
    monkeypatch: pytest.MonkeyPatch, runs: tuple[Record, ...], found: tuple[int, str] | None
) -> None:
    monkeypatch.setattr(module, "read_history", lambda *_: History(runs))
    held = active_inventory(cast("KubeClient", None), NOW)
    assert (held and (held.run, held.inventory.specs.driver.image.version)) == found


def test_no_rollback_without_a_policy_and_none_twice() -> None:
    history = History((DRIVER,))
    assert find_rollback_target(*_look(OnFailure.PAUSE), history, OWN) == (None, ())
    assert find_rollback_target(*_look(OnFailure.ROLLBACK), history, replace(OWN, back_to=1)) == (None, ())
