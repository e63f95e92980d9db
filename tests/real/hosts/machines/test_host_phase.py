"""The host phase over SSH on two virtual machines: a real kernel, real modules, a real reboot.

The tests go on from one another in their order. The first machine is reached as root, the second one through sudo.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.answers import Answer
from tests.contract.client import Server
from tests.real.hosts import state
from tests.real.hosts.conftest import Boot, Lap
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
def machines(start: Boot, lap: Lap) -> tuple[Machine, ...]:
    """Two machines as they come, with two GPUs each; one has a BMC."""
    begun = start("gpu-1"), start("gpu-2", Hardware(bmc=False))
    with lap("two machines boot"):
        for machine in begun:
            machine.await_boot()
    begun[1].run(f"printf '# by hand\\nloop' >{MODULES}")
    return begun


@pytest.fixture(scope="module")
def as_they_came(machines: tuple[Machine, ...]) -> list[set[str]]:
    """All that is in /etc before the first run; on the second machine a file is where gpu-provision writes one."""
    return [state.contents(state.of(machine)) for machine in machines]


@pytest.fixture(scope="module")
def user(machines: tuple[Machine, ...], cluster: Server, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Their owner."""
    return User(tmp_path_factory.mktemp("user"), machines, cluster.kubeconfig, SETTINGS)


@pytest.fixture(scope="module")
def first_run(user: User, as_they_came: list[set[str]], lap: Lap) -> Answer:
    """What the first run says."""
    assert all(as_they_came)
    with lap("first run"):
        return user.apply("--hosts-only")


def test_the_machines_are_what_the_tests_are_about(machines: tuple[Machine, ...]) -> None:
    """Two GPUs that the kernel sees, nouveau loaded for them, I2C built in; IPMI is loaded where there is a BMC."""
    for machine in machines:
        host = state.of(machine)
        assert len(state.gpus(host)) == 2
        assert "nouveau" in state.loaded(host)
        assert "i2c_core" in state.built_in(host) - state.loaded(host)
    with_bmc, without = (state.of(machine) for machine in machines)
    assert with_bmc.file("/dev/ipmi0").exists
    assert state.loaded(with_bmc) >= IPMI
    assert not IPMI & state.loaded(without)


def test_preflight_says_what_is_true(user: User, machines: tuple[Machine, ...]) -> None:
    """Two GPUs on each host, Debian instead of Ubuntu, nothing worse; and nothing is touched by looking."""
    before = [state.written(state.of(machine)) for machine in machines]
    said = user.cli("preflight", "--json")
    assert said.code == 0, said.text
    assert [host["gpus"] for host in said.document["hosts"]] == [2, 2]
    assert {("GP651", machine.name) for machine in machines} <= {
        (finding["code"], finding["where"]) for finding in said.document["warnings"]
    }
    assert [state.written(state.of(machine)) for machine in machines] == before


def test_preflight_refuses_a_nouveau_that_is_to_stay(
    machines: tuple[Machine, ...], cluster: Server, tmp_path: Path
) -> None:
    """With blacklist_nouveau: false the driver container would find the cards taken."""
    keep = {"host_prerequisites": {"blacklist_nouveau": False}}
    said = User(tmp_path, machines, cluster.kubeconfig, keep).cli("preflight", "--json")
    assert said.code == 1
    for machine in machines:
        assert "/proc/modules: nouveau" in said.errors["GP614", machine.name]["evidence"]


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
def test_modules_are_loaded_and_nouveau_is_gone(machines: tuple[Machine, ...]) -> None:
    """Right after the first run, without a reboot: this nouveau is not in use."""
    for machine in machines:
        _assert_prepared(machine)


@pytest.mark.usefixtures("first_run")
def test_second_run_changes_nothing(user: User, machines: tuple[Machine, ...], lap: Lap) -> None:
    before = [state.written(state.of(machine)) for machine in machines]
    with lap("second run"):
        second = user.apply("--hosts-only")
    assert second.code == 0, second.text
    assert second.changes == [[], []]
    assert [state.written(state.of(machine)) for machine in machines] == before


@pytest.mark.usefixtures("first_run")
def test_stock_pyinfra_says_no_changes_of_every_operation(user: User) -> None:
    said = user.pyinfra("host_prerequisites.py").text
    assert said.count("No changes") == 2 * said.count("Starting operation") > 0, said


@pytest.mark.usefixtures("first_run")
def test_all_of_it_survives_a_reboot(user: User, machines: tuple[Machine, ...], lap: Lap) -> None:
    """Modules, huge pages and limits come back, nouveau does not, and the next run has nothing to do."""
    before = [state.of(machine).check_output("cat /proc/sys/kernel/random/boot_id") for machine in machines]
    with lap("two machines reboot"), ThreadPoolExecutor() as pool:
        list(pool.map(Machine.reboot, machines))
    for machine, boot in zip(machines, before, strict=True):
        assert state.of(machine).check_output("cat /proc/sys/kernel/random/boot_id") != boot
        _assert_prepared(machine)
    third = user.apply("--hosts-only")
    assert third.changes == [[], []]
    assert not any(host["reboot_needed"] for host in third.document["hosts"])


def _assert_prepared(machine: Machine) -> None:
    """What every GPU host is like in the end, by an independent reader."""
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
    user: User, machines: tuple[Machine, ...], as_they_came: list[set[str]]
) -> None:
    said = user.pyinfra("host_teardown.py")
    assert said.code == 0, said.text
    assert [state.contents(state.of(machine)) for machine in machines] == as_they_came
    assert not any(state.of(machine).file("/var/lib/gpu-provision").exists for machine in machines)


def test_a_changed_host_key_is_one_finding(user: User, machines: tuple[Machine, ...], tmp_path: Path) -> None:
    machine = machines[0]
    known = machine.known_hosts.read_text()
    machine.known_hosts.write_text(_with_another_key(known, tmp_path))
    try:
        said = user.apply("--hosts-only", "--limit", machine.name)
    finally:
        machine.known_hosts.write_text(known)
    assert said.code == 1, said.text
    (error,) = said.document["errors"]
    assert error["where"] == machine.name
    assert "Host key for 127.0.0.1 does not match" in error["evidence"]


def _with_another_key(known: str, folder: Path) -> str:
    """Return known hosts with the same names and types, and a key that is not theirs."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "other"], check=True)
    other = (folder / "other.pub").read_text().split()[1]
    names = known.split(maxsplit=1)[0]
    return f"{names} ssh-ed25519 {other}\n"


DIES = "/etc/modprobe.d/dies.conf"


def test_a_machine_that_dies_in_the_middle_is_one_finding(
    user: User, machines: tuple[Machine, ...], cluster: Server
) -> None:
    """The other host is finished, and the cluster phase is held back: nothing is written there."""
    finishes, dies = machines
    dies.run("modprobe -r ipmi_devintf")
    dies.run(f"echo 'install ipmi_devintf echo o >/proc/sysrq-trigger; sleep 600' >{DIES}")  # power off, at once
    said = user.apply()
    assert said.code == 1, said.text
    assert dies.qemu.wait(10) is not None
    about = [finding["what"] for finding in said.document["errors"] if finding["where"] == dies.name]
    assert [what.startswith("the cluster phase was held back") for what in about] == [False, True], said.text
    _assert_prepared(finishes)
    namespaces = {each["metadata"]["name"] for each in cluster.get("/api/v1/namespaces")["items"]}
    assert not namespaces & {"gpu-operator-resources", "node-feature-discovery"}
