"""Twenty hosts with systemd: what the host phase asks of it, on all of them at once, and a second time for nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.answers import Answer
from tests.real.hosts import nspawn, state
from tests.real.hosts.conftest import assert_as_they_came
from tests.real.hosts.nspawn import NspawnHost, nspawn_hosts
from tests.real.hosts.user import User

pytestmark = pytest.mark.hosts

SETTINGS = {
    "host_prerequisites": {
        "kernel_modules": ["i2c_core"],
        "hold_packages": True,
        "sysctls": {"vm.max_map_count": "262144"},
        "runtime_imports": True,
    }
}
PACKAGES = ["linux-headers-6.1.0-1-amd64", "linux-image-6.1.0-1-amd64"]
KUBELET = "KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/containerd/containerd.sock\n"
IMPORT = "/etc/containerd/conf.d/*.toml"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NspawnHost, ...]]:
    """All of them, with containerd running, for a kubelet that is not started."""
    if reason := nspawn.missing():
        pytest.skip(reason)
    with contextlib.ExitStack() as running:
        begun = running.enter_context(nspawn_hosts(tmp_path_factory.mktemp("twenty"), 20))
        for host in begun:
            (host.root / "etc/default/kubelet").write_text(KUBELET)
            (host.root / "var/lib/kubelet").mkdir()
            (host.root / "var/lib/kubelet/kubeconfig").touch()
        yield begun


def _process_of_containerd(host: NspawnHost) -> str:
    """Return what changes when systemd restarts it; empty while it does not run."""
    return host.run("systemctl show --value --property InvocationID containerd")


def test_first_run_does_the_same_on_every_host(first_run: Answer, hosts: tuple[NspawnHost, ...]) -> None:
    """What is built into the kernel is no change; neither is a nouveau that is not loaded."""
    assert first_run.code == 0, first_run.text
    (changes,) = {tuple(host) for host in first_run.changes}
    assert len(first_run.changes) == len(hosts)
    assert changes[:4] == (
        "nouveau blacklisted",
        f"packages held: {', '.join(PACKAGES)}",
        "kernel parameters set: vm.max_map_count=262144",
        "kernel parameters kept for the boot",
    )
    assert "containerd" in changes[4]


@pytest.mark.usefixtures("first_run")
def test_containerd_runs_with_the_import_that_it_was_given(hosts: tuple[NspawnHost, ...]) -> None:
    """On every host systemd has it running; a file beside it counts, as the toolkit's will."""
    for host in hosts:
        assert IMPORT in (host.root / "etc/containerd/config.toml").read_text()
        assert host.run("systemctl is-active containerd") == "active"
    drop_in = "mkdir /etc/containerd/conf.d && echo 'oom_score = -7' >/etc/containerd/conf.d/99-nvidia.toml"
    assert "oom_score = -7" in hosts[0].run(f"{drop_in} && containerd config dump; rm -r /etc/containerd/conf.d")


@pytest.mark.usefixtures("first_run")
def test_kernel_parameters_equal_those_of_the_next_boot(hosts: tuple[NspawnHost, ...]) -> None:
    host = hosts[-1]
    host.run("echo 65530 >/proc/sys/vm/max_map_count")
    assert "vm.max_map_count = 262144" in host.run("systemd-analyze cat-config sysctl.d")
    host.run("/lib/systemd/systemd-sysctl --prefix=/vm")
    assert state.of(host).sysctl("vm.max_map_count") == 262144


@pytest.mark.usefixtures("first_run")
def test_kernel_packages_are_held(hosts: tuple[NspawnHost, ...]) -> None:
    for host in (hosts[0], hosts[-1]):
        assert state.of(host).check_output("apt-mark showhold").splitlines() == PACKAGES
    removed = hosts[0].run(f"apt-get remove --simulate --yes {PACKAGES[0]} 2>&1", check=False)
    assert "Held packages were changed" in removed


@pytest.mark.usefixtures("first_run")
def test_second_run_changes_nothing_and_restarts_nothing(user: User, hosts: tuple[NspawnHost, ...]) -> None:
    before = [(state.written(state.of(host)), _process_of_containerd(host)) for host in hosts]
    second = user.apply("--hosts-only")
    assert second.code == 0, second.text
    assert second.changes == [[]] * len(hosts)
    assert [(state.written(state.of(host)), _process_of_containerd(host)) for host in hosts] == before


@pytest.mark.usefixtures("first_run")
def test_stock_pyinfra_says_no_changes_of_every_operation(user: User, hosts: tuple[NspawnHost, ...]) -> None:
    said = user.pyinfra("host_prerequisites.py").text
    assert said.count("No changes") == len(hosts) * said.count("Starting operation") > 0, said


@pytest.mark.usefixtures("first_run")
def test_teardown_restores_every_file_to_the_byte(
    user: User, hosts: tuple[NspawnHost, ...], as_they_came: dict[str, set[str]]
) -> None:
    said = user.pyinfra("host_teardown.py")
    assert said.code == 0, said.text
    assert_as_they_came(hosts, as_they_came)
    assert hosts[0].run("apt-mark showhold") == ""


DIES = 'version = 2\nroot = "/proc/nowhere"\n'


@pytest.mark.usefixtures("first_run")
def test_a_containerd_killed_by_its_drop_in_is_restored(user: User, hosts: tuple[NspawnHost, ...]) -> None:
    """One finding, which names the line of the journal; its old configuration runs, to the byte."""
    dies, *others = hosts
    (dies.root / "etc/containerd/conf.d").mkdir()
    (dies.root / "etc/containerd/conf.d/50-site.toml").write_text(DIES)
    before = (dies.root / "etc/containerd/config.toml").read_bytes()
    said = user.apply("--hosts-only")
    assert said.code == 1, said.text
    (error,) = said.document["errors"]
    assert (error["code"], error["where"]) == ("GP672", dies.name)
    assert "/proc/nowhere" in error["evidence"]
    assert (dies.root / "etc/containerd/config.toml").read_bytes() == before
    assert dies.run("systemctl is-active containerd") == "active"
    for host in others:
        assert IMPORT in (host.root / "etc/containerd/config.toml").read_text()
        assert host.run("systemctl is-active containerd") == "active"
