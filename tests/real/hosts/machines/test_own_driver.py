"""A virtual machine with a driver of its own: what test_resources' host may not do, huge pages, limits, boots.

The tests go on from one another in their order.
"""

from __future__ import annotations

import pytest

from tests.answers import Answer
from tests.contract.client import Server
from tests.real.hosts import state
from tests.real.hosts.conftest import Boot, Lap
from tests.real.hosts.machine import Hardware, Machine
from tests.real.hosts.test_resources import ARCHIVE, DRIVER
from tests.real.hosts.user import User

pytestmark = [pytest.mark.hosts, pytest.mark.spare]

SETTINGS = {
    "host_prerequisites": {
        "kernel_modules": [],
        "blacklist_nouveau": False,
        "hugepages": {"2Mi": 16},
        "limits": {"memlock": "unlimited"},
    },
    "preflight": {"registry": False, "ignore": ["GP614", "GP622", "GP623", "GP628"]},
    "pools": {"t4": {"gpu": {"model": "T4", "count": 2}, "driver": {"enabled": False}}},
}

# A container of the machine's own root; what its processes are limited to is the runtime's doing.
CONTAINER = (
    "mkdir -p /tree && { mountpoint -q /tree || mount --bind / /tree; } && ctr run --rm --rootfs /tree test /bin/sh -c"
)


@pytest.fixture(scope="module")
def machine(start: Boot, lap: Lap) -> Machine:
    """The machine."""
    begun = start("own-driver-01", Hardware(bmc=False))
    with lap("a machine with its own driver boots"):
        begun.await_boot()
    begun.run(DRIVER)
    begun.run(ARCHIVE)
    return begun


@pytest.fixture(scope="module")
def as_it_came(machine: Machine) -> set[str]:
    """All that is in /etc before the first run."""
    return state.contents(state.of(machine))


@pytest.fixture(scope="module")
def user(machine: Machine, cluster: Server, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Its owner."""
    return User(tmp_path_factory.mktemp("driver-owner"), (machine,), cluster.kubeconfig, SETTINGS)


@pytest.fixture(scope="module")
def runtime(machine: Machine) -> str:
    """The process of containerd before the first run, and how much memory its containers may lock: little."""
    assert _locked(machine) != "unlimited"
    return machine.run("pidof containerd")


@pytest.fixture(scope="module")
def first_run(user: User, as_it_came: set[str], runtime: str) -> Answer:
    """What the first run says."""
    assert as_it_came
    assert runtime
    return user.apply("--hosts-only")


def _locked(machine: Machine) -> str:
    """Return how much memory a container may lock, in KiB."""
    return machine.run(f"{CONTAINER} 'ulimit -l'")


def test_first_run_says_what_it_did(first_run: Answer, machine: Machine) -> None:
    """The unit of gpu-provision waits for the next boot: no driver is loaded."""
    assert first_run.code == 0, first_run.text
    assert first_run.changes == [
        [
            f"kernel headers installed: {machine.run('uname -r')}",
            "huge pages reserved: 16 x 2Mi (0 before)",
            "huge pages kept for the boot",
            "limits of containerd set: memlock=unlimited",
            "limits kept for the boot: containerd.service",
            "unit gpu-provision-persistence made",
            "persistence mode at every boot, by gpu-provision-persistence",
        ]
    ]


@pytest.mark.usefixtures("first_run")
def test_all_of_it_is_so_at_once(machine: Machine, runtime: str) -> None:
    """By independent readers; containerd was not restarted, and new containers may lock what they like."""
    host = state.of(machine)
    assert host.package(f"linux-headers-{machine.run('uname -r')}").is_installed
    assert host.file("/proc/meminfo").contains("^HugePages_Total: *16$")
    assert host.service("gpu-provision-persistence").is_enabled
    assert (machine.run("pidof containerd"), _locked(machine)) == (runtime, "unlimited")


@pytest.mark.usefixtures("first_run")
def test_second_run_changes_nothing(user: User, machine: Machine) -> None:
    """No operation, and no file."""
    before = state.written(state.of(machine))
    second = user.apply("--hosts-only")
    assert (second.code, second.changes) == (0, [[]]), second.text
    assert state.written(state.of(machine)) == before


@pytest.mark.usefixtures("first_run")
def test_all_of_it_survives_a_reboot(user: User, machine: Machine) -> None:
    """Pages by systemd-tmpfiles, limits by the drop-in, persistence mode by the unit; then there is nothing to do."""
    machine.reboot()
    assert state.of(machine).file("/proc/meminfo").contains("^HugePages_Total: *16$")
    assert _locked(machine) == "unlimited"
    assert machine.run("cat /run/nvidia-smi-was-told") == "-pm 1"
    third = user.apply("--hosts-only")
    assert (third.code, third.changes) == (0, [[]]), third.text


@pytest.mark.usefixtures("first_run")
def test_teardown_takes_all_of_it_back(user: User, machine: Machine, as_it_came: set[str]) -> None:
    """Files, packages with all that came with them, and the unit."""
    said = user.pyinfra("host_teardown.py")
    assert said.code == 0, said.text
    assert state.contents(state.of(machine)) == as_it_came
    assert machine.run("dpkg-query -W -f '${Package} ' 'linux-headers-*' 'linux-kbuild-*' 2>/dev/null || :") == ""
    assert not state.of(machine).service("gpu-provision-persistence").is_enabled
