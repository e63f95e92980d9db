"""Simulated hosts: real commands, private state, and machines that cannot isolate them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import pytest

from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.fleet_file import load_fleet
from gpu_provision.sandbox.hosts import SimulatedHost, isolation
from gpu_provision.sandbox.hosts.spec import HostSpec, to_host_spec
from gpu_provision.sandbox.state import DIRECTORY_VARIABLE, sandbox_directory
from tests import data_file

CASES = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
T4 = ("1eb8", "0302")
WITH_NOUVEAU = HostSpec(name="t4-1", gpus=(T4,), modules=("overlay", "nouveau"))
Shell = Callable[[str], str]


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return hosts.ensure(WITH_NOUVEAU, tmp_path / "sandbox with a space")


@pytest.fixture
def shell(host: SimulatedHost) -> Shell:
    return lambda command: said(host, command)


def said(host: SimulatedHost, command: str) -> str:
    done = hosts.run(host, command)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def failed(host: SimulatedHost, command: str) -> str:
    done = hosts.run(host, command)
    assert done.returncode != 0, done.stdout.decode()
    return done.stderr.decode().strip()


def loaded(shell: Shell) -> set[str]:
    return {line.split()[0] for line in shell("lsmod").splitlines()[1:]}


def test_a_driver_of_the_machine_below_is_not_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an NVIDIA driver of its own can run a sandbox, too. Any file stands in for the driver's."""
    monkeypatch.setattr(isolation, "DRIVER_FILES", ("lib/os-releas*",))
    isolation._driver_files.cache_clear()
    covered = hosts.ensure(HostSpec(name="t4-1"), tmp_path)
    isolation._driver_files.cache_clear()
    assert Path("/usr/lib/os-release").stat().st_size
    assert said(covered, "[ -s /usr/lib/os-release ] || echo covered") == "covered"


@pytest.mark.parametrize(("command", "output"), CASES["says"].items())
def test_a_host_has_a_system_of_its_own(shell: Shell, command: str, output: str) -> None:
    """Name, kernel, root, PCI bus and modules are its own, not those of the machine below."""
    assert shell(command) == output


@pytest.mark.parametrize(("command", "message"), CASES["refuses"].items())
def test_a_host_refuses(host: SimulatedHost, command: str, message: str) -> None:
    """Programs of the machine below are read-only; modprobe fails as the real one does."""
    assert message in failed(host, command)


def test_state_is_the_hosts_own_and_outlives_its_users(host: SimulatedHost, shell: Shell, tmp_path: Path) -> None:
    """Nothing of the machine below changes, no other host sees it, and it lasts until it is removed."""
    directory = host.directory.parents[1]
    shell("modprobe ipmi_si; echo mine > /etc/gpu-provision-test; mkdir /opt/thing; echo secret > /root/secret")
    assert (host.directory / "etc/gpu-provision-test").read_text() == "mine\n"
    assert not Path("/etc/gpu-provision-test").exists()
    assert said(hosts.ensure(HostSpec(name="t4-2"), tmp_path), "ls /root; lsmod | grep -c ipmi || true") == "0"
    assert "ipmi_si" in said(hosts.ensure(WITH_NOUVEAU, directory), "lsmod")
    hosts.remove("t4-1", directory)
    assert "ipmi_si" not in said(hosts.ensure(WITH_NOUVEAU, directory), "lsmod")


def test_reboot_forgets_modules_and_loads_those_of_the_boot(host: SimulatedHost, shell: Shell) -> None:
    """modules-load.d and /etc/modules decide, comments do not."""
    shell("modprobe ipmi_devintf; printf '# no\\nipmi-si\\n' > /etc/modules-load.d/x.conf; touch /run/reboot-required")
    boot_id = shell("cat /proc/sys/kernel/random/boot_id")
    hosts.reboot(host)
    assert loaded(shell) == {"overlay", "nouveau", "ipmi_si"}
    assert shell("ls -R /run").split() == ["/run:", "containerd", "/run/containerd:", "containerd.sock"]
    assert shell("cat /proc/sys/kernel/random/boot_id") != boot_id


def test_nouveau_returns_until_the_initramfs_is_updated(host: SimulatedHost, shell: Shell) -> None:
    """The mistake that people make most."""
    shell("echo blacklist nouveau > /etc/modprobe.d/no-nouveau.conf")
    hosts.reboot(host)
    assert "nouveau" in loaded(shell)
    shell("update-initramfs -u")
    hosts.reboot(host)
    assert "nouveau" not in loaded(shell)


def test_initramfs_tool_is_that_of_the_system(tmp_path: Path, shell: Shell) -> None:
    """Debian's kin has update-initramfs, Red Hat's has dracut, neither has both."""
    rhel = hosts.ensure(HostSpec(name="rhel-1", os_id="rhel", os_version="9.4", kernel="5.14.0"), tmp_path)
    both = "for tool in update-initramfs dracut; do command -v $tool; done; true"
    assert shell(both) == "/.sandbox/bin/update-initramfs"
    assert said(rhel, both) == "/.sandbox/bin/dracut"
    said(rhel, "dracut --force --kver 5.14.0")
    assert said(rhel, "ls /boot/initramfs*") == "/boot/initramfs-5.14.0.img"


def test_fleet_says_how_a_host_differs(tmp_path: Path) -> None:
    """The keys of a node's ``host``; a module in use cannot be unloaded, as nouveau with a console on it."""
    fleet = tmp_path / "mine.yaml"
    host = {"nouveau": True, "builtin": ["ipmi_msghandler"], "available": [], "in_use": ["nouveau"]}
    nodes = [{"name": "a", "os": "rhel9.4", "host": host}, {"name": "b", "host": {"reachable": False}}]
    fleet.write_text(json.dumps({"nodes": nodes}))
    a, b = map(to_host_spec, load_fleet(fleet).machines)
    assert (a.os_id, a.os_version, a.architecture) == ("rhel", "9.4", "x86_64")
    assert (a.builtin, a.available, a.in_use) == (("ipmi_msghandler",), (), ("nouveau",))
    assert "nouveau is in use" in failed(hosts.ensure(a, tmp_path), "modprobe -r nouveau")
    with pytest.raises(hosts.HostUnavailableError, match="unreachable"):
        hosts.ensure(b, tmp_path)


def test_a_host_of_an_openshift_fleet_is_coreos(tmp_path: Path) -> None:
    """Its /etc/os-release has OpenShift's fields."""
    node = next(machine for machine in load_fleet("openshift").machines if machine.name == "gpu-0")
    host = hosts.ensure(to_host_spec(node), tmp_path)
    release = said(host, "cat /etc/os-release")
    for line in (
        'ID="rhcos"',
        'VERSION_ID="4.18"',
        'OPENSHIFT_VERSION="4.18"',
        'OSTREE_VERSION="418.94.202505062142-0"',
    ):
        assert line in release.splitlines()
    tools = "for tool in rpm crio apt-get; do command -v $tool; done; true"
    assert said(host, tools) == "/.sandbox/bin/rpm\n/.sandbox/bin/crio"


def test_state_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ours first, then XDG's, then the home directory; state that cannot be written is said."""
    variables = {
        "HOME": ("/c", "/c/.local/state/gpu-provision/sandbox/f"),
        "XDG_STATE_HOME": ("/b", "/b/gpu-provision/sandbox/f"),
        DIRECTORY_VARIABLE: ("/a", "/a/f"),
    }
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    for variable, (value, directory) in variables.items():
        monkeypatch.setenv(variable, value)
        assert sandbox_directory("f") == Path(directory)
    (tmp_path / "hosts").write_text("")
    with pytest.raises(hosts.HostUnavailableError, match="cannot be written"):
        hosts.ensure(HostSpec(name="t4-1"), tmp_path)


AS_USER = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts.spec import HostSpec
host = hosts.SimulatedHost("", pathlib.Path())
if not hosts.isolation_problem():
    host = hosts.ensure(HostSpec(name="t4-1"), pathlib.Path(sys.argv[2]))
command = "id -u; modprobe ipmi_si; grep -c ipmi /proc/modules; touch /usr/x || echo refused"
print(hosts.isolation_problem() or hosts.run(host, command).stdout.decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="all the other tests run as an ordinary user already")
def test_ordinary_user_has_the_same_hosts(tmp_path: Path) -> None:
    """Root's privileges are not needed; user namespaces are."""
    python = "/usr/bin/python3"  # the tests' own may be where only root can read, as the checkout
    package = tmp_path / "package"
    shutil.copytree(Path(hosts.__file__).parents[2], package / "gpu_provision", ignore=shutil.ignore_patterns("*.pyc"))
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "PYTHONDONTWRITEBYTECODE=1"]
    command = [*drop, python, "-c", AS_USER, str(package), str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout.split() == ["0", "1", "refused"], done.stderr


def test_a_new_host_is_in_the_boot_that_its_node_is_in(tmp_path: Path) -> None:
    """The first use of a host does not reboot its node."""
    memory = tmp_path / "machines/t4-1.jsonl"
    memory.parent.mkdir()
    memory.write_text('{"boot_id": "before"}\n{"boot_id": "as of the node"}\n')
    host = hosts.ensure(WITH_NOUVEAU, tmp_path)
    assert said(host, "cat /proc/sys/kernel/random/boot_id") == "as of the node"
    hosts.reboot(host)
    assert said(host, "cat /proc/sys/kernel/random/boot_id") != "as of the node"


def test_refusal_of_the_system_is_one_line_with_its_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As seccomp, AppArmor or a sysctl would refuse."""
    isolation._find_method.cache_clear()
    refusing = tmp_path / "enter.py"
    refusing.write_text("import sys\nsys.exit('unshare: Operation not permitted')\n")
    monkeypatch.setattr(isolation, "_ENTER", refusing)
    problem = isolation.isolation_problem()
    assert problem.endswith("make namespaces (unshare: Operation not permitted)")
    assert len(problem.splitlines()) == 1
    isolation._find_method.cache_clear()


def test_state_directory_may_have_any_name(tmp_path: Path) -> None:
    """Also one with bytes that no text has."""
    directory = tmp_path / os.fsdecode(b"a b\tc\\d\n\xff")
    host = hosts.ensure(HostSpec(name="t4-1"), directory)
    assert hosts.run(host, "echo $PATH; pwd").stdout.split() == [ANY, b"/root"]


def test_broken_pipe_ends_a_command_as_on_a_host(tmp_path: Path) -> None:
    """Python ignores the signal, and what it starts would inherit that.

    Root of a host lacks rights over the machine: an ordinary user's namespace has these over itself alone.
    """
    host = hosts.ensure(HostSpec(name="t4-1"), tmp_path)
    assert hosts.run(host, "yes | head -n 1; kill -PIPE $$; echo alive").stdout == b"y\n"
    rights = int(hosts.run(host, "grep CapBnd /.proc/self/status").stdout.split()[1], 16)
    left = {right for right in (16, 17, 22, 25) if rights >> right & 1}
    assert isolation._find_method()[0] == "user" or not left
