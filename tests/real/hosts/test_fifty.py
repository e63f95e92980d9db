"""Fifty hosts: the first run brings every one to the same end, the second finds nothing to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.answers import Answer
from tests.contract.client import Server
from tests.real.hosts import rootfs, state
from tests.real.hosts.conftest import Lap
from tests.real.hosts.light import LightHost, light_hosts
from tests.real.hosts.user import User

pytestmark = pytest.mark.hosts

SETTINGS = {
    "host_prerequisites": {
        "kernel_modules": ["i2c_core", "ipmi_msghandler", "ipmi-devintf"],
        "hold_packages": True,
        "sysctls": {"vm.max_map_count": "262144"},
    }
}
PACKAGES = ["linux-headers-6.1.0-1-amd64", "linux-image-6.1.0-1-amd64"]
CHANGES = [
    "kernel modules loaded: ipmi_msghandler, ipmi_devintf",
    "kernel modules listed for the boot: ipmi_msghandler, ipmi_devintf",
    "nouveau blacklisted",
    "nouveau unloaded",
    f"packages held: {', '.join(PACKAGES)}",
    "kernel parameters set: vm.max_map_count=262144",
    "kernel parameters kept for the boot",
]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LightHost, ...]]:
    """All of them."""
    if reason := rootfs.missing():
        pytest.skip(reason)
    with light_hosts(tmp_path_factory.mktemp("fifty"), 50) as running:
        yield running


@pytest.fixture(scope="module")
def user(hosts: tuple[LightHost, ...], cluster: Server, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Their owner."""
    return User(tmp_path_factory.mktemp("owner"), hosts, cluster.kubeconfig, SETTINGS)


@pytest.fixture(scope="module")
def first_run(user: User, lap: Lap) -> Answer:
    """What the first run says."""
    with lap("first run on 50 light hosts"):
        return user.apply("--hosts-only")


def test_first_run_prepares_every_host(first_run: Answer, hosts: tuple[LightHost, ...]) -> None:
    """As root and through sudo; what is built into the kernel is no change."""
    assert first_run.code == 0, first_run.text
    assert first_run.changes == [CHANGES] * len(hosts)
    for host in hosts:
        assert (host.root / "proc/sys/vm/max_map_count").read_text() == "262144\n"
    for host in hosts[::7]:
        _assert_prepared(host)


def _assert_prepared(host: LightHost) -> None:
    """What every GPU host is like in the end, by an independent reader over SSH."""
    there = state.of(host)
    assert state.loaded(there) >= {"ipmi_msghandler", "ipmi_devintf"}
    assert "nouveau" not in state.loaded(there)
    assert there.check_output("apt-mark showhold").splitlines() == PACKAGES
    assert there.sysctl("vm.max_map_count") == 262144
    assert there.file("/etc/modprobe.d/gpu-provision-nouveau.conf").contains("^blacklist nouveau$")


@pytest.mark.usefixtures("first_run")
def test_second_run_changes_nothing_and_writes_nothing(user: User, hosts: tuple[LightHost, ...], lap: Lap) -> None:
    """No operation, and no file of any host: one command reads it, another one says how it is in the end."""
    before = [host.written() for host in hosts]
    commands = [host.commands_run() for host in hosts]
    with lap("second run on 50 light hosts"):
        second = user.apply("--hosts-only")
    assert second.code == 0, second.text
    assert second.changes == [[]] * len(hosts)
    assert [host.written() for host in hosts] == before
    assert [host.commands_run() - run for host, run in zip(hosts, commands, strict=True)] == [2] * len(hosts)


@pytest.mark.usefixtures("first_run")
def test_stock_pyinfra_says_no_changes_of_every_operation(user: User, hosts: tuple[LightHost, ...]) -> None:
    """The deploy file does what apply does, on as many hosts at once."""
    said = user.pyinfra("host_prerequisites.py").text
    assert said.count("No changes") == len(hosts) * said.count("Starting operation") > 0, said


@pytest.mark.usefixtures("first_run")
def test_teardown_leaves_nothing_of_ours(user: User, hosts: tuple[LightHost, ...]) -> None:
    """Holds are released by the real apt-mark, files are gone."""
    said = user.pyinfra("host_teardown.py")
    assert said.code == 0, said.text
    for host in hosts:
        assert not [path for path in host.written() if "gpu-provision" in path]
    assert state.of(hosts[-1]).check_output("apt-mark showhold") == ""
