"""Light hosts themselves: what they begin with, and what can go wrong with one of them at will."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.real.hosts import rootfs, state
from tests.real.hosts.light import LightHost, light_hosts

pytestmark = pytest.mark.hosts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LightHost, ...]]:
    """One host for each thing that can happen, and one more."""
    if reason := rootfs.missing():
        pytest.skip(reason)
    with light_hosts(tmp_path_factory.mktemp("light"), 7) as running:
        yield running


def _as_admin(host: LightHost, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    connect = ["ssh", "-F", str(host.ssh_config), "-l", "admin", *options, host.name]
    return subprocess.run([*connect, command], check=False, capture_output=True, text=True, timeout=180)


def test_a_host_is_what_tests_expect(hosts: tuple[LightHost, ...]) -> None:
    """Two GPUs for lspci, nouveau loaded, I2C built in, a kernel package, sudo for admin, a name of its own."""
    host = state.of(hosts[0])
    assert host.check_output("hostname") == hosts[0].name
    assert len(state.gpus(host)) == 2
    assert "nouveau" in state.loaded(host)
    assert "i2c_core" in state.built_in(host) - state.loaded(host)
    assert host.package("linux-image-6.1.0-1-amd64").is_installed
    assert _as_admin(hosts[0], "sudo id -u").stdout == "0\n"


def test_hosts_share_neither_modules_nor_files_nor_sysctls(hosts: tuple[LightHost, ...]) -> None:
    """And this machine has none of it."""
    one, other = hosts[:2]
    one.run("modprobe -r nouveau; echo here >/etc/here; echo 1 >/proc/sys/vm/max_map_count")
    assert "nouveau" not in state.loaded(state.of(one))
    assert "nouveau" in state.loaded(state.of(other))
    assert other.run("cat /etc/here /proc/sys/vm/max_map_count", check=False) == "65530"


def test_a_host_that_dies_at_a_program_breaks_the_connection(hosts: tuple[LightHost, ...]) -> None:
    """The others live."""
    dies = hosts[1]
    dies.dies_at("modprobe")
    assert _as_admin(dies, "sudo modprobe ipmi_si; echo alive").stdout == ""
    assert dies.outside.wait(10) is not None
    assert hosts[0].run("echo alive") == "alive"


def test_a_frozen_host_says_nothing_and_takes_connections(hosts: tuple[LightHost, ...]) -> None:
    """Whether it froze by itself or was frozen; thawed, it goes on."""
    by_itself, frozen = hosts[2:4]
    by_itself.freezes_at("apt-mark")
    frozen.freeze()
    for host, command in ((by_itself, "sudo apt-mark showhold"), (frozen, "true")):
        assert _as_admin(host, command, "-o", "ServerAliveInterval=1", "-o", "ConnectTimeout=5").returncode == 255
    frozen.thaw()
    assert frozen.run("echo thawed") == "thawed"


def test_sudo_that_wants_a_password_gets_none_from_nobody(hosts: tuple[LightHost, ...]) -> None:
    """With it, it works."""
    host = hosts[4]
    host.ask_for_sudo_password("secret")
    assert "a password is required" in _as_admin(host, "sudo -n true").stderr
    assert _as_admin(host, "echo secret | sudo -S -p '' id -u").stdout == "0\n"


def test_a_full_disk_takes_no_more(hosts: tuple[LightHost, ...]) -> None:
    """What is there can be read, and other hosts can write."""
    host = hosts[5]
    host.fill_disk()
    assert "No space left on device" in _as_admin(host, "echo more | sudo tee /etc/more").stderr
    assert hosts[0].run("echo more | tee /etc/more") == "more"


def test_a_changed_key_is_noticed(hosts: tuple[LightHost, ...]) -> None:
    """By those who knew the old one."""
    host = hosts[6]
    host.run("true")
    host.change_host_key()
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in _as_admin(host, "true").stderr


def test_a_program_fails_as_told(hosts: tuple[LightHost, ...]) -> None:
    """With its words."""
    hosts[0].fails_at("modprobe", "no such device")
    done = _as_admin(hosts[0], "sudo modprobe ipmi_si")
    assert (done.returncode, done.stderr) == (1, "no such device\n")
