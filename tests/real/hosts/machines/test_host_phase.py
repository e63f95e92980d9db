"""The host phase over SSH on two virtual machines: a real kernel, real modules, a real reboot.

The tests go on from one another in their order. The first machine is reached as root, the second one through sudo.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.answers import Answer
from tests.real.hosts import state
from tests.real.hosts.conftest import Boot, assert_as_they_came
from tests.real.hosts.machine import Hardware, Machine
from tests.real.hosts.user import User

pytestmark = pytest.mark.hosts

MODULES = "/etc/modules-load.d/gpu-provision.conf"
BLACKLIST = "/etc/modprobe.d/gpu-provision-nouveau.conf"
IPMI = {"ipmi_msghandler", "ipmi_devintf"}
SETTINGS = {
    "host_prerequisites": {
        "kernel_modules": ["i2c_core", "ipmi_msghandler", "ipmi-devintf"],
        "hugepages": {"2Mi": 16},
        "limits": {"memlock": "unlimited"},
    }
}


@pytest.fixture(scope="module")
def hosts(start: Boot) -> tuple[Machine, ...]:
    begun = start("gpu-1"), start("gpu-2", Hardware(bmc=False))
    for machine in begun:
        machine.await_boot()
    begun[1].run(f"printf '# by hand\\nloop' >{MODULES}")
    return begun


def test_the_machines_are_what_the_tests_are_about(hosts: tuple[Machine, ...]) -> None:
    """Two GPUs that the kernel sees, nouveau loaded for them, I2C built in; IPMI is loaded where there is a BMC."""
    for machine in hosts:
        host = state.of(machine)
        assert len(state.gpus(host)) == 2
        assert "nouveau" in state.loaded(host)
        assert "i2c_core" in state.built_in(host) - state.loaded(host)
    with_bmc, without = (state.of(machine) for machine in hosts)
    assert with_bmc.file("/dev/ipmi0").exists
    assert state.loaded(with_bmc) >= IPMI
    assert not IPMI & state.loaded(without)


def test_preflight_says_what_is_true(user: User, hosts: tuple[Machine, ...]) -> None:
    """Two GPUs on each host, Debian instead of Ubuntu, nothing worse; and nothing is touched by looking."""
    before = [state.written(state.of(machine)) for machine in hosts]
    said = user.cli("preflight", "--json")
    assert said.code == 0, said.text
    assert [host["gpus"] for host in said.document["hosts"]] == [2, 2]
    assert {("GP651", machine.name) for machine in hosts} <= {
        (finding["code"], finding["where"]) for finding in said.document["warnings"]
    }
    assert [state.written(state.of(machine)) for machine in hosts] == before


def test_first_run_says_what_it_did(first_run: Answer) -> None:
    """As root and through sudo alike: what was loaded already is only listed, what is built in not even that."""
    assert first_run.code == 0, first_run.text
    listed = "kernel modules listed for the boot: ipmi_msghandler, ipmi_devintf"
    others = [
        "nouveau blacklisted",
        "initramfs rebuilt",
        "nouveau unloaded",
        "huge pages reserved: 16 x 2Mi (0 before)",
        "huge pages kept for the boot",
        "limits of containerd set: memlock=unlimited",
        "limits kept for the boot: containerd.service",
    ]
    loaded = "kernel modules loaded: ipmi_msghandler, ipmi_devintf"
    assert first_run.changes == [[listed, *others], [loaded, listed, *others]]


@pytest.mark.usefixtures("first_run")
def test_modules_are_loaded_and_nouveau_is_gone(hosts: tuple[Machine, ...]) -> None:
    """Right after the first run, without a reboot: this nouveau is not in use."""
    for machine in hosts:
        _assert_prepared(machine)


@pytest.mark.usefixtures("first_run")
def test_second_run_changes_nothing(user: User, hosts: tuple[Machine, ...]) -> None:
    before = [state.written(state.of(machine)) for machine in hosts]
    second = user.apply("--hosts-only")
    assert second.code == 0, second.text
    assert second.changes == [[], []]
    assert [state.written(state.of(machine)) for machine in hosts] == before


@pytest.mark.usefixtures("first_run")
def test_all_of_it_survives_a_reboot(user: User, hosts: tuple[Machine, ...]) -> None:
    """Modules, huge pages and limits come back, nouveau does not, and the next run has nothing to do."""
    before = [state.of(machine).check_output("cat /proc/sys/kernel/random/boot_id") for machine in hosts]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Machine.reboot, hosts))
    for machine, boot in zip(hosts, before, strict=True):
        assert state.of(machine).check_output("cat /proc/sys/kernel/random/boot_id") != boot
        _assert_prepared(machine)
    third = user.apply("--hosts-only")
    assert third.changes == [[], []]
    assert not any(host["reboot_needed"] for host in third.document["hosts"])


def _assert_prepared(machine: Machine) -> None:
    host = state.of(machine)
    assert state.loaded(host) >= IPMI
    assert "nouveau" not in state.loaded(host)
    listed = host.file(MODULES).content_string.splitlines()
    assert [line for line in listed if not line.startswith("#")] == ["ipmi_msghandler", "ipmi_devintf"]
    assert host.file(BLACKLIST).contains("^blacklist nouveau$")
    assert host.file("/proc/meminfo").contains("^HugePages_Total: *16$")
    assert "unlimited" in host.check_output("grep 'Max locked memory' /proc/$(pidof containerd)/limits")
    for path in (MODULES, BLACKLIST):
        file = host.file(path)
        assert (file.user, file.group, file.mode) == ("root", "root", 0o644)


@pytest.mark.usefixtures("first_run")
def test_teardown_restores_every_file_to_the_byte(
    user: User, hosts: tuple[Machine, ...], as_they_came: dict[str, set[str]]
) -> None:
    said = user.pyinfra("host_teardown.py")
    assert said.code == 0, said.text
    assert_as_they_came(hosts, as_they_came)
    assert not any(state.of(machine).file("/var/lib/gpu-provision").exists for machine in hosts)
