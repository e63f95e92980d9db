"""An API server that restarts, hangs, refuses or ends while a run goes on: it is waited for, and that is said."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.scenarios.world import World

Make = Callable[..., World]
_IN_THE_MIDDLE = 40  # writes of about 70


def in_the_middle(world: World) -> subprocess.Popen[str]:
    """Start a run; return it when it has made about half of its writes."""
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: len(world.writes()) > _IN_THE_MIDDLE)
    return run


def test_an_api_server_that_restarts_in_the_middle_is_waited_for(new_world: Make) -> None:
    """A control plane's restart costs the run a pause, not its life."""
    world = new_world(timings={"speed": 4})
    run = in_the_middle(world)
    world.kill_server()
    world.start_server()
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out


@pytest.mark.real  # for the time it takes
def test_an_api_server_that_hangs_for_a_while_is_waited_for(new_world: Make) -> None:
    world = new_world(timings={"speed": 4})
    run = in_the_middle(world)
    server = world.server_pid()
    os.kill(server, signal.SIGSTOP)
    time.sleep(1.5)  # the outage itself is what is tested
    os.kill(server, signal.SIGCONT)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out


@pytest.mark.real  # for the time it takes
def test_a_run_reports_that_the_api_server_is_gone(new_world: Make) -> None:
    world = new_world(timings={"speed": 0.2})
    run = in_the_middle(world)
    world.kill_server()
    assert run.stdout is not None
    told = ""
    while "trying for another" not in told:
        line = run.stdout.readline()
        assert line, f"the run ended: {told}"
        told += line
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 130, told + out
    assert "Traceback" not in out
