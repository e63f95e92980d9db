"""Operations and deploys through pyinfra's own connectors, from inventories that are not made of a YAML file.

``@docker`` needs a daemon, which no test starts: a root directory without a kernel stands for a container.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.hosts import built, state
from tests.real.hosts.light import LightHost, light_hosts
from tests.real.hosts.user import CHECKOUT

pytestmark = pytest.mark.hosts

PYINFRA = Path(sys.executable).with_name("pyinfra")
NOUVEAU_FILE = "/etc/modprobe.d/gpu-provision-nouveau.conf"
OPERATIONS = """
from gpu_provision.operations import kernel_modules, nouveau, packages_held

kernel_modules(name="modules", modules=["ipmi_msghandler"])
nouveau(name="nouveau")
packages_held(name="packages")
"""
NOUVEAU = """
from gpu_provision.operations import nouveau

nouveau(name="nouveau alone")
"""
WHOLE = """
from gpu_provision.deploys import host_prerequisites

host_prerequisites()
"""
# This machine with copies of the folders that operations write to, and no module that modprobe could unload.
ON_A_COPY = """
mount -t tmpfs copies "$1"
for folder in /etc /var /boot; do
  mkdir -p "$1$folder/upper" "$1$folder/work"
  mount -t overlay -o "lowerdir=$folder,upperdir=$1$folder/upper,workdir=$1$folder/work" overlay "$folder"
done
[ ! -e /proc/modules ] || mount --bind /dev/null /proc/modules
shift
for option in --dry -y -y; do "$@" "$option" inventory.py deploy.py; done
"""
# A root directory as an image's: no kernel, no systemd that runs. Its folder is $1/box.
IN_A_BOX = """
mkdir "$1/box" "$1/layers"
mount -t tmpfs layers "$1/layers"
mkdir "$1/layers/upper" "$1/layers/work"
mount -t overlay -o "lowerdir=$2,upperdir=$1/layers/upper,workdir=$1/layers/work" overlay "$1/box"
mount -t proc proc "$1/box/proc"
shift 2
for option in -y -y; do "$@" "$option" inventory.py deploy.py || :; done
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightHost]:
    if reason := built.namespaces_missing():
        pytest.skip(reason)
    with light_hosts(tmp_path_factory.mktemp("connectors"), 1) as (started,):
        yield started


class Runner:
    """Runs pyinfra in a folder that has an inventory of hosts and a deploy file, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, host: object, deploy: str) -> None:
        (self.folder / "inventory.py").write_text(f"hosts = [{host!r}]\n")
        (self.folder / "deploy.py").write_text(deploy)

    def run(self, option: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(PYINFRA), option, "inventory.py", "deploy.py"])

    def within(self, script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
        """Run it in a mount namespace that a shell script arranges, with further arguments of the script."""
        return self._run(["unshare", "--mount", "sh", "-euc", script, "sh", *map(str, arguments), str(PYINFRA)])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(self.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )


@pytest.fixture
def pyinfra(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_ssh_with_sudo_changes_a_host_once(pyinfra: Runner, host: LightHost) -> None:
    """By pyinfra's own host data; then the whole host phase runs there as well."""
    data = {
        "ssh_hostname": host.address,
        "ssh_port": host.port,
        "ssh_user": "admin",
        "ssh_key": str(host.key),
        "ssh_known_hosts_file": str(host.known_hosts),
        "ssh_strict_host_key_checking": "accept-new",
        "_sudo": True,
    }
    pyinfra.write((host.name, data), OPERATIONS)
    plan, first, second = (pyinfra.run(option) for option in ("--dry", "-y", "-y"))
    assert [plan.returncode, first.returncode, second.returncode] == [0, 0, 0], plan.stdout + first.stdout
    assert plan.stdout.count(f"1 ({host.name})") == first.stdout.count("Success\n") == 3, plan.stdout + first.stdout
    assert second.stdout.count("No changes") == 3, second.stdout
    assert state.of(host).file(NOUVEAU_FILE).contains("blacklist nouveau")
    pyinfra.write((host.name, data), WHOLE)
    whole = pyinfra.run("-y")
    assert whole.returncode == 0, whole.stdout


def test_chroot_of_a_machine_is_a_host_as_others(pyinfra: Runner, host: LightHost) -> None:
    """It sees the machine's kernel modules and GPUs; a second run changes nothing."""
    pyinfra.write(f"@chroot/{host.root}", OPERATIONS)
    first, second = pyinfra.run("-y"), pyinfra.run("-y")
    assert [first.returncode, second.returncode] == [0, 0], first.stdout
    assert second.stdout.count("No changes") == 3, second.stdout


def test_container_without_kernel_modules_is_a_finding(pyinfra: Runner, tmp_path: Path) -> None:
    """What needs no kernel is done before; no traceback follows, and no advice to install a kernel."""
    pyinfra.write(f"@chroot/{tmp_path}/box", NOUVEAU + OPERATIONS + WHOLE)
    said = pyinfra.within(IN_A_BOX, tmp_path, built.ROOTFS.built() / "root").stdout
    assert said.count("GP601 @chroot/") == 2, said
    assert "a container, or a kernel without modules" in said
    assert "fix: load modules on the machine whose kernel this is" in said
    assert said.count("] Success\n") == said.count("] No changes\n") == 1, said
    assert "Traceback" not in said
    assert ".py line" not in said


def test_local_changes_this_machine_once(pyinfra: Runner, tmp_path: Path) -> None:
    pyinfra.write("@local", NOUVEAU)
    done = pyinfra.within(ON_A_COPY, tmp_path)
    assert done.returncode == 0, done.stdout
    assert [done.stdout.count(said) for said in ("1 (@local)", "] Success\n", "] No changes\n")] == [1, 1, 1], (
        done.stdout
    )
    assert "Traceback" not in done.stdout
