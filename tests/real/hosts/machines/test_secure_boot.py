"""A virtual machine whose firmware has Secure Boot on, with the keys that real machines come with."""

from __future__ import annotations

import pytest

from tests.contract.client import Server
from tests.real.hosts import state
from tests.real.hosts.conftest import Boot
from tests.real.hosts.machine import Hardware, Machine, secure_boot_missing
from tests.real.hosts.user import User

pytestmark = pytest.mark.hosts


@pytest.fixture(scope="module")
def machine(start: Boot) -> Machine:
    if reason := secure_boot_missing():
        pytest.skip(reason)
    begun = start("secure", Hardware(secure_boot=True))
    begun.await_boot()
    return begun


@pytest.fixture(scope="module")
def user(machine: Machine, cluster: Server, tmp_path_factory: pytest.TempPathFactory) -> User:
    return User(tmp_path_factory.mktemp("owner"), (machine,), cluster.kubeconfig)


def test_its_kernel_is_locked_down(machine: Machine) -> None:
    host = state.of(machine)
    assert "[integrity]" in host.file("/sys/kernel/security/lockdown").content_string
    assert "Secure boot enabled" in host.check_output("dmesg")


def test_a_driver_build_is_refused_before_the_first_write(user: User, machine: Machine) -> None:
    """GP615, in preflight and in apply, which leaves the host as it was."""
    before = state.written(state.of(machine))
    for command in (("preflight", "--json"), ("apply", "--yes", "--json", "--hosts-only")):
        said = user.cli(*command)
        assert said.code == 1, said.text
        assert said.errors["GP615", machine.name]["fix"]
    assert state.written(state.of(machine)) == before
    assert "nouveau" in state.loaded(state.of(machine))
