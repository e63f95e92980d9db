"""When things go wrong: one clear message, a documented exit code, nothing half done that a second run cannot mend."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.scenarios.world import World

OPERANDS = "gpu-operator-resources"
Make = Callable[..., World]


def test_a_driver_that_does_not_build_fails_its_node_alone(new_world: Make) -> None:
    """The other nodes are finished and validated; what depends on the driver there is blocked, not failed."""
    world = new_world()
    world.fault({"fault": "driver-build-fails", "node": "t4-2"})
    world.settings(driver={"timeout": 8})
    run = world.apply("--cluster-only", "--json")
    assert run.code == 1, run.text
    document = json.loads(run.out)
    errors = [error for error in document["errors"] if error["code"] == "GP501"]
    assert len(errors) == 1, document["errors"]
    assert "t4-2" in errors[0]["what"]
    assert "driver" in errors[0]["what"]
    assert errors[0]["evidence"]
    assert errors[0]["fix"]
    blocked = [warning for warning in document["warnings"] if warning["code"] == "GP507"]
    assert "toolkit" in blocked[0]["what"]
    status = json.loads(world.cli("status", "--json", "-i", str(world.inventory)).out)
    states = {row["node"]: row["state"] for row in status["nodes"]}
    assert states["t4-1"] == states["h100-1"] == "ready", states

    world.fault()
    assert world.apply("--cluster-only").code == 0, "a run after the cause has gone brings the node up"


def test_stock_pyinfra_says_the_same_and_exits_1(new_world: Make) -> None:
    world = new_world(faults=[{"fault": "image-pull-fails", "node": "t4-1", "image": "container-toolkit"}])
    world.settings(toolkit={"timeout": 5})
    run = world.pyinfra("-y")
    assert run.code == 1
    assert "GP502" in run.text
    assert "toolkit failed on t4-1" in run.text
    assert "Traceback" not in run.text


def test_a_missing_gpu_is_told_by_its_counts(new_world: Make) -> None:
    """Seven of eight GPUs are not ready, whatever the device plugin says."""
    world = new_world(faults=[{"fault": "plugin-sees-fewer", "node": "h100-1", "count": 7}])
    world.settings(validator={"timeout": 4})
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP504" in run.text
    assert "8 x" in run.text
    assert "h100-1" in run.text


def test_a_failed_vector_add_shows_its_own_last_line(new_world: Make) -> None:
    world = new_world()
    world.fault({"fault": "vectoradd-fails", "node": "t4-1"})
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP503" in run.text
    assert "t4-1" in run.text
    world.fault()
    assert world.apply("--cluster-only").code == 0


def test_a_field_of_another_manager_is_a_conflict_and_nothing_is_written(new_world: Make) -> None:
    world = new_world()
    theirs = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "somebody-elses",
    }
    world.kubectl("apply", "--server-side", "--field-manager", "helm", "-f", "-", stdin=json.dumps(theirs))
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP304" in run.text
    assert "helm" in run.text
    assert "handler" in run.text
    assert world.writes() == []
    assert world.json("runtimeclass", "nvidia")["handler"] == "somebody-elses"


def test_the_second_of_two_runs_says_who_holds_the_lock(new_world: Make) -> None:
    world = new_world(timings={"speed": 2})
    first = world.start(*world.apply_command, "--cluster-only")
    try:
        world.until(lambda: any("/leases" in request.path for request in world.writes()))
        second = world.apply("--cluster-only")
        assert second.code == 75, second.text
        assert f"pid {first.pid}" in second.text
        assert "since 20" in second.text
    finally:
        out, _ = first.communicate(timeout=60)
    assert first.returncode == 0, out


def test_an_interrupted_run_gives_the_lock_back(new_world: Make) -> None:
    world = new_world(timings={"speed": 1})
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: any("/leases" in request.path for request in world.writes()))
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=30)
    assert run.returncode == 130, out
    assert "Traceback" not in out
    lease = world.json("lease", "sandbox", "-n", OPERANDS)
    assert not lease["spec"].get("holderIdentity"), out


def test_an_api_server_that_is_down_is_one_message(new_world: Make) -> None:
    world = new_world()
    config = world.kubeconfig.read_text()
    dead = world.folder / "dead"
    dead.write_text(config.replace(f":{config.partition('https://127.0.0.1:')[2].split()[0]}", ":1"))
    world.settings(cluster={"kubeconfig": str(dead), "context": "sandbox-fleet", "sandbox": None})
    text = "\n".join(line for line in world.inventory.read_text().splitlines() if "sandbox: null" not in line)
    world.inventory.write_text(text.replace("sandbox-fleet", _context(config)))
    run = world.apply("--cluster-only")
    assert run.code == 69, run.text
    assert "GP301" in run.text
    assert "Traceback" not in run.text
    assert len(run.text.strip().splitlines()) < 8


def _context(config: str) -> str:
    return next(line.split()[-1] for line in config.splitlines() if line.startswith("current-context"))


@pytest.mark.parametrize("fault", ["unavailable", "drop"])
def test_an_api_server_that_dies_in_the_middle_is_waited_for(new_world: Make, fault: str) -> None:
    """A control plane that restarts costs the run a pause, not its life."""
    world = new_world(timings={"speed": 4})
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: len(world.writes()) > 40)
    world.server_fault(**{fault: {"seconds": 2, "agents": "gpu-provision"}, "expire-watches": True})
    out, _ = run.communicate(timeout=100)
    assert run.returncode == 0, out


def test_an_api_server_that_hangs_for_a_while_is_waited_for(new_world: Make) -> None:
    world = new_world(timings={"speed": 4})
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: len(world.writes()) > 40)
    sandbox = json.loads(world.cli("sandbox", "status", "--json", "--fleet", str(world.fleet), check=True).out)
    os.kill(sandbox["sandbox"]["pid"], signal.SIGSTOP)
    time.sleep(1.5)  # the outage itself is what is tested
    os.kill(sandbox["sandbox"]["pid"], signal.SIGCONT)
    out, _ = run.communicate(timeout=100)
    assert run.returncode == 0, out


def test_a_wrong_token_is_refused_in_one_message(new_world: Make) -> None:
    world = new_world()
    config = world.kubeconfig.read_text()
    token = next(line.split()[-1] for line in config.splitlines() if "token:" in line)
    bad = world.folder / "bad"
    bad.write_text(config.replace(token, "nobody"))
    document = world.inventory.read_text().replace(
        f"sandbox: {world.fleet}", f"kubeconfig: {bad}\n  context: {_context(config)}"
    )
    world.inventory.write_text(document)
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP302" in run.text
    assert "nobody" not in run.text


def test_a_second_stack_over_the_same_objects_is_refused_before_it_writes(new_world: Make) -> None:
    """Two inventories that apply the same objects would undo each other for ever."""
    world = new_world()
    world.apply("--cluster-only", check=True)
    before = len(world.writes())
    world.settings(name="other")
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP309" in run.text
    assert len(world.writes()) == before


def test_an_api_server_that_went_away_is_told_while_it_is_waited_for(new_world: Make) -> None:
    world = new_world(timings={"speed": 1})
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: len(world.writes()) > 60)
    sandbox = json.loads(world.cli("sandbox", "status", "--json", "--fleet", str(world.fleet), check=True).out)
    os.kill(sandbox["sandbox"]["pid"], signal.SIGKILL)
    assert run.stdout is not None
    told = next(line for line in run.stdout if "has not answered for" in line)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 130, told + out
    assert "Traceback" not in out
