"""Hosts whose sudo asks for a password: with it they are prepared, without it each fails by itself."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_provision.hosts.runner import prepare
from gpu_provision.inventory import pyinfra_inventory
from tests.answers import Answer
from tests.hosts.ssh_server import Conduct
from tests.hosts.ssh_site import CHECKOUT, Site, site
from tests.pyinfra_server import PyinfraServer

Pyinfra = Callable[..., Answer]

PASSWORD = "geheim-4711"  # noqa: S105 - of a test server
CONDUCTS = {"asks": Conduct(password=PASSWORD), "free": Conduct()}


@pytest.fixture(scope="module")
def here(simulated: Path) -> Iterator[Site]:
    with site(simulated, CONDUCTS) as begun:
        yield begun


@pytest.fixture(scope="module")
def pyinfra(here: Site, pyinfra_server: PyinfraServer) -> Pyinfra:
    def run(deploy: str, *options: str, **environment: str) -> Answer:
        words = ["pyinfra", *options, "inventory.py", f"{CHECKOUT}/deploys/{deploy}"]
        return pyinfra_server.run(words, folder=here.folder, environment={**os.environ, **environment}, seconds=120)

    return run


def test_stock_pyinfra_without_a_terminal_fails_that_host_alone(here: Site, pyinfra: Pyinfra) -> None:
    ran = pyinfra("host_prerequisites.py", "-y")
    assert ran.code == 1
    assert "GP688 asks: sudo wants a password" in ran.out
    assert "Traceback" not in ran.out
    assert "kernel modules are present" not in ran.out
    assert here.servers["free"].ran("modprobe -a -- ")


ERRORS = """
import sys
from gpu_provision.hosts.runner import prepare
from gpu_provision.inventory import load
print([finding.code for host in prepare(load(sys.argv[1])).hosts for finding in host.errors])
"""


def test_no_prompt_during_a_run(here: Site) -> None:
    controller, terminal = os.openpty()
    done = subprocess.run(
        [sys.executable, "-c", ERRORS, here.folder / "inventory.yaml"],
        stdin=terminal,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        timeout=120,
    )
    os.close(controller)
    os.close(terminal)
    assert done.stdout.strip() == "['GP688']"


def test_password_from_the_environment_is_used_and_never_shown(here: Site, pyinfra: Pyinfra) -> None:
    ran = pyinfra("host_prerequisites.py", "-y", "-vvv", "--debug", **{pyinfra_inventory.SUDO_VARIABLE: PASSWORD})
    assert ran.code == 0, ran.out
    assert here.servers["asks"].ran("modprobe -a -- ")
    assert PASSWORD not in ran.out


def test_given_password_is_used(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pyinfra_inventory.SUDO_VARIABLE, "another")
    token = pyinfra_inventory._sudo_password.set(PASSWORD)
    try:
        result = prepare(here.inventory)
    finally:
        pyinfra_inventory._sudo_password.reset(token)
    assert [(host.failed, host.changes) for host in result.hosts] == [(False, ()), (False, ())]
    assert PASSWORD not in repr(result)


def test_wrong_password_is_a_finding_that_does_not_name_it(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pyinfra_inventory.SUDO_VARIABLE, "another")
    asks, free = prepare(here.inventory).hosts
    assert [finding.code for finding in asks.errors] == ["GP688"]
    assert "does not take the password" in asks.reason
    assert "another" not in asks.reason
    assert not free.failed
