"""Two runs never write at once; each test goes on where the last one ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests.scenarios.conftest import Open
from tests.scenarios.world import World

STUCK = {"fault": "crash-loop", "node": "t4-1", "image": "k8s-device-plugin", "message": "no PCI bus"}


@pytest.fixture(scope="module")
def world(opening: Open, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with opening(tmp_path_factory.mktemp("locks"), timings={"speed": 4}) as made:
        yield made


def as_administrator(world: World) -> tuple[str, ...]:
    """The flags to run as another user than the world's."""
    context = yaml.safe_load(world.kubeconfig.read_text())["current-context"]
    return "--kubeconfig", str(world.kubeconfig), "--context", context


def run_both(world: World) -> list[int]:
    """Let two users apply at the same moment; return their exit codes."""
    flags = world.give_rights(), as_administrator(world)
    world.fault({"fault": "driver-slow", "seconds": 40})  # the first one is still at it when the second one begins
    runs = [world.start(*world.apply_command, "--cluster-only", *each) for each in flags]
    texts = [run.communicate(timeout=300)[0] for run in runs]
    assert all(run.returncode in {0, 75} for run in runs), texts
    return sorted(run.returncode for run in runs)


def assert_apart(writes: list[LoggedRequest]) -> None:
    """Between the first and the last write of one user there is none of anybody else."""
    done = sorted((one for one in writes if one.code < 300), key=lambda one: one.time)
    turns = [
        one.user for before, one in zip([None, *done], done, strict=False) if not before or before.user != one.user
    ]
    assert len(turns) == len(set(turns)), [(one.time, one.user, one.verb, one.path) for one in done]


def test_of_two_first_applies_one_writes_and_one_is_refused(world: World) -> None:
    """The namespace of the lock is not there yet, either."""
    assert run_both(world) == [0, 75]
    assert_apart(world.writes())
    assert "as declared" in world.plan().out


@pytest.mark.real
def test_two_runs_planned_at_once_write_one_after_the_other(world: World) -> None:
    """Or only one of them writes: what the other one has planned may not hold any more."""
    before = len(world.writes())
    world.edit(lambda text: text.replace("version: v0.20.0", "version: v0.19.3"))
    run_both(world)
    assert_apart(world.writes()[before:])
    assert "as declared" in world.plan().out


@pytest.mark.real
def test_a_live_run_keeps_its_lock_unless_forced(world: World) -> None:
    """Then it ends, says so, and the next one goes on from there."""
    run = stuck(world)
    held = world.cli("status", "--json", "-i", str(world.inventory)).document["lock"]
    assert f"pid {run.pid} " in held["holder"]
    assert held["silent_seconds"] is None or 0 <= held["silent_seconds"] < 60  # 1.20 keeps the first write's time only
    assert f"A run is writing: {held['holder']}" in world.cli("status", "-i", str(world.inventory)).out
    code, refused = unlock(world)
    assert (code, refused["errors"][0]["code"]) == (75, "GP350"), refused
    assert f"pid {run.pid} " in refused["errors"][0]["what"]
    code, forced = unlock(world, "--force")
    assert (code, forced["unlocked"]) == (0, True)
    assert f"pid {run.pid} " in forced["lock"]["holder"]
    after = len(changes(world))
    text, _ = run.communicate(timeout=300)
    assert (run.returncode, "GP308" in text) == (75, True), text
    assert len(changes(world)) == after, "it had ended when the lock was free"
    assert world.status()["lock"] is None
    world.fault()
    world.apply("--cluster-only", check=True)


@pytest.mark.real
def test_the_lock_of_a_killed_run_can_be_released(world: World) -> None:
    """And a free lock is no error."""
    run = stuck(world)
    run.kill()
    run.communicate(timeout=300)
    code, freed = unlock(world)
    assert (code, freed["unlocked"]) == (0, True), freed
    code, again = unlock(world)
    assert (code, again["lock"], again["unlocked"]) == (0, None, False)
    assert "The lock is free" in world.cli("unlock", "--yes", "-i", str(world.inventory)).out
    world.fault()
    world.apply("--cluster-only", check=True)


def changes(world: World) -> list[LoggedRequest]:
    """Return the writes but for those of the lock, which a run that has lost it tries to renew."""
    return [write for write in world.writes() if "/leases" not in write.path]


def stuck(world: World) -> subprocess.Popen[str]:
    """Start a run that writes and then waits for a pod that does not come up."""
    world.fault(STUCK)
    text = world.inventory.read_text()
    one, other = "version: v0.20.0", "version: v0.19.3"
    world.edit(lambda _: text.replace(one, other) if one in text else text.replace(other, one))
    before = len(world.writes())
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: any("/daemonsets/" in request.path for request in world.writes()[before:]))
    return run


def unlock(world: World, *flags: str) -> tuple[int, dict[str, Any]]:
    answer = world.cli("unlock", "--yes", "--json", *flags, "-i", str(world.inventory))
    return answer.code, answer.document
