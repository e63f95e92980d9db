"""A containerd under a real systemd, on a virtual machine: its configuration is changed, taken back, and torn down.

The tests go on from one another in their order.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.answers import failures
from tests.contract.client import Server
from tests.real.hosts import state
from tests.real.hosts.conftest import Boot
from tests.real.hosts.machine import Machine
from tests.real.hosts.user import User

pytestmark = pytest.mark.hosts

CONFIG = "/etc/containerd/config.toml"
PATTERN = "/etc/containerd/conf.d/*.toml"
DROP_IN = "/etc/containerd/conf.d/50-site.toml"
DIES = 'version = 2\nroot = "/proc/nowhere"\n'
DIES_SAYS = "mkdir /proc/nowhere: no such file or directory"
RESTARTED = ["/etc/containerd/conf.d/*.toml imported in /etc/containerd/config.toml", "containerd restarted"]


@pytest.fixture(scope="module")
def machine(start: Boot) -> Machine:
    """A machine that looks like a node, whose containerd runs one container."""
    begun = start("runtime-1")
    begun.await_boot()
    begun.run("mkdir -p /var/lib/kubelet /srv/root && : >/var/lib/kubelet/kubeconfig && mount --bind / /srv/root")
    begun.run("ctr run --detach --rootfs /srv/root longlived /bin/sleep infinity")
    return begun


@pytest.fixture(scope="module")
def as_it_came(machine: Machine) -> set[str]:
    """All that is in /etc before the first run."""
    return state.contents(state.of(machine))


@pytest.fixture(scope="module")
def user(machine: Machine, as_it_came: set[str], cluster: Server, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Its owner."""
    assert as_it_came
    return User(tmp_path_factory.mktemp("user"), (machine,), cluster.kubeconfig)


def test_a_containerd_that_dies_gets_its_old_configuration_and_keeps_running(machine: Machine, user: User) -> None:
    """To the byte; containers go on running, and the journal's line is the evidence."""
    host = state.of(machine)
    machine.run(f"mkdir -p /etc/containerd/conf.d && printf '%s' '{DIES}' >{DROP_IN}")
    before, container, runtime = host.file(CONFIG).content, _container(machine), _main_process(machine)
    said = user.apply("--hosts-only")
    assert said.code == 1, said.text
    error = said.errors["GP672", machine.name]
    assert DIES_SAYS in error["evidence"]
    assert host.file(CONFIG).content == before
    assert host.service("containerd").is_running
    assert _main_process(machine) != runtime
    assert _container(machine) == container
    assert _works(machine)


def test_the_import_is_made_and_the_second_run_changes_nothing(machine: Machine, user: User) -> None:
    """With what broke it gone, containerd restarts once, and the container does not."""
    host = state.of(machine)
    machine.run(f"rm {DROP_IN}")
    before, container = tomllib.loads(host.file(CONFIG).content_string), _container(machine)
    first = user.apply("--hosts-only")
    assert first.code == 0, first.text
    assert [change for change in first.changes[0] if "containerd" in change] == RESTARTED
    assert tomllib.loads(host.file(CONFIG).content_string) == {**before, "imports": [PATTERN]}
    assert _container(machine) == container
    assert _works(machine)
    runtime = _main_process(machine)
    assert user.apply("--hosts-only").changes == [[]]
    assert _main_process(machine) == runtime


@pytest.mark.spare
def test_acceptance_tests_pass_and_name_what_is_not_as_declared(machine: Machine, user: User, tmp_path: Path) -> None:
    """They share no code with the run; each check is a test case of the JUnit file."""
    report = tmp_path / "verified.xml"
    passed = user.cli("verify", "--hosts-only", "--junit", str(report))
    assert passed.code == 0, passed.text
    assert failures(report) == {}
    machine.run("modprobe -r ipmi_devintf")
    failed = user.cli("verify", "--hosts-only", "--junit", str(report))
    machine.run("modprobe ipmi_devintf")
    assert failed.code == 1, failed.text
    ((name, why),) = failures(report).items()
    assert name == f"test_kernel_modules_are_loaded[{machine.name}]"
    assert "not loaded: ipmi_devintf" in why


@pytest.mark.spare
def test_teardown_restarts_containerd_with_what_it_restored(machine: Machine, user: User, as_it_came: set[str]) -> None:
    """It imports nothing then, also in what it runs with; the container goes on."""
    container, runtime = _container(machine), _main_process(machine)
    machine.run("rmdir /etc/containerd/conf.d")  # the test made it
    said = user.pyinfra("host_teardown.py")
    assert said.code == 0, said.text
    assert state.contents(state.of(machine)) == as_it_came
    assert _main_process(machine) != runtime
    assert _container(machine) == container
    assert _works(machine)


def _container(machine: Machine) -> str:
    """Return the process of the container, and when it began."""
    (row,) = [row.split() for row in machine.run("ctr tasks ls").splitlines() if row.startswith("longlived")]
    assert row[2] == "RUNNING"
    return machine.run(f"ps -o pid=,lstart= -p {row[1]}")


def _main_process(machine: Machine) -> str:
    return machine.run("systemctl show -P MainPID containerd")


def _works(machine: Machine) -> bool:
    rows = [line.split() for line in machine.run("ctr plugins ls").splitlines()]
    return ["io.containerd.grpc.v1", "cri", "ok"] in [[row[0], row[1], row[-1]] for row in rows if row]
