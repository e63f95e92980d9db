"""Nodes with a failure: its first cause is reported, the rest is finished, and a second run repairs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hostile import MIXED, MIXED_SHOWN, find_control_characters
from tests.scenarios.world import OPERANDS, World

Make = Callable[..., World]


BUILD = (
    "the driver cannot be built for the kernel that the node runs: ERROR: The kernel module failed to build for kernel "
)


def test_a_waiting_run_shows_the_cause_of_a_crash(new_world: Make) -> None:
    """It is that of the failure in the end; a driver has 20 minutes by default. The log is read once for a restart.

    The other nodes are finished; a run after the cause has gone brings this one up.
    """
    world = new_world()
    world.fault({"fault": "driver-build-fails", "node": "t4-2"})
    world.settings(driver={"timeout": 20})
    run = world.apply("--cluster-only")
    assert run.code == 1, run.text
    waiting, _, end = run.err.partition("! driver t4-2 failed: ")
    assert f". driver t4-2 progressing: {BUILD}" in waiting
    assert end.startswith(BUILD)
    assert "driver failed on t4-2: the driver cannot be built" in end
    assert run.text.count("error: ") == 1, "one cause is one finding"
    (pod,) = [pod for pod in world.driver_pods() if pod["spec"]["nodeName"] == "t4-2"]
    logs = [one for one in world.requests() if one.path.endswith(f"/{pod['metadata']['name']}/log")]
    assert len(logs) <= pod["status"]["containerStatuses"][0]["restartCount"] + 1
    rows = {row["node"]: row for row in world.status()["nodes"]}
    assert rows["t4-2"]["reason"].startswith(f"driver: {BUILD}")
    assert rows["t4-1"]["state"] == rows["h100-1"]["state"] == "ready", rows
    world.fault()
    assert world.apply("--cluster-only").code == 0


@pytest.mark.real  # for the time it takes
def test_stock_pyinfra_says_the_same_and_exits_1(new_world: Make) -> None:
    world = new_world(faults=[{"fault": "image-pull-fails", "node": "t4-1", "image": "container-toolkit"}])
    world.settings(toolkit={"timeout": 5})
    run = world.pyinfra("-y")
    assert run.code == 1
    assert "GP502" in run.text
    assert "toolkit failed on t4-1" in run.text
    assert "Traceback" not in run.text


@pytest.mark.real  # for the time it takes
def test_a_missing_gpu_is_reported_by_counts(new_world: Make) -> None:
    """Seven of eight GPUs are not ready, whatever the device plugin says."""
    world = new_world(faults=[{"fault": "plugin-sees-fewer", "node": "h100-1", "count": 7}])
    world.settings(validator={"timeout": 20})
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP504" in run.text
    assert "8 x" in run.text
    assert "h100-1" in run.text


def test_a_failed_vector_add_shows_its_own_last_line(new_world: Make) -> None:
    """Without what would steer a terminal, which a lease may hold as well."""
    world = new_world()
    world.fault({"fault": "vectoradd-fails", "node": "t4-1", "message": MIXED})
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP503" in run.text
    assert "t4-1" in run.text
    assert (MIXED_SHOWN in run.text, find_control_characters(run.text)) == (True, set())
    lease = ("lease", world.name, "-n", OPERANDS)
    world.api.patch(*lease, patch={"spec": {"holderIdentity": MIXED}})
    status = world.cli("status", "-i", str(world.inventory))
    assert (f"A run is writing: {MIXED_SHOWN}" in status.out, find_control_characters(status.text)) == (True, set())
    world.api.patch(*lease, patch={"spec": {"holderIdentity": None}})
    world.fault()
    assert world.apply("--cluster-only").code == 0
