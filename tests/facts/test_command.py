"""The command, run by real shells on hosts of several kinds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_provision.facts.modules import OWN_FILE as MODULES_FILE
from gpu_provision.facts.nouveau import OWN_FILE as NOUVEAU_FILE
from gpu_provision.facts.record import HostRecord, command, parse
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.host_root import HostSpec

WANTED = ("i2c-core", "ipmi_msghandler")
T4 = HostSpec(name="t4-1", gpus=(("1eb8", "0302"),))


def seen(spec: HostSpec, sandbox: Path, before: str = ":") -> HostRecord:
    """Return what the fact says about a new simulated host on which something was done before."""
    host = hosts.ensure(spec, sandbox)
    hosts.run(host, before).check_returncode()
    done = hosts.run(host, command(WANTED))
    assert (done.returncode, done.stderr) == (0, b"")
    record = parse(done.stdout.decode().splitlines())
    assert record
    return record


def test_fresh_ubuntu_host(sandbox: Path) -> None:
    """What it is, has and lacks."""
    record = seen(T4, sandbox)
    assert (record.kernel.running, record.kernel.architecture) == ("5.15.0-122-generic", "x86_64")
    assert (record.system.id, record.system.version) == ("ubuntu", "22.04")
    assert record.modules.built_in == {"i2c_core"}
    assert "ipmi_msghandler" in record.modules.available
    assert "ipmi_msghandler" not in record.modules.loaded
    assert [gpu.device for gpu in record.pci.gpus] == ["1eb8"]
    assert record.nouveau.initramfs_tool == "update-initramfs"
    assert not record.nouveau.blacklisted
    assert (record.modules.own_file, record.nouveau.own_file) == (None, None)


def test_bytes_that_are_no_utf8_are_left_out(sandbox: Path) -> None:
    """Comments in the alphabets of old; what is UTF-8 stays."""
    written = r"printf '# caf\351 caf\303\251\nloop\n'"
    record = seen(T4, sandbox, f"{written} >{MODULES_FILE}")
    assert record.modules.own_file == ("# caf café", "loop")


def test_node_of_a_cluster(sandbox: Path) -> None:
    """Its distribution, kubelet and container runtime; its disk and its confinement."""
    record = seen(T4, sandbox)
    assert (record.kubernetes.distribution, record.kubernetes.cgroup_driver) == ("kubeadm", "systemd")
    assert record.cri
    assert (record.cri.kind, record.cri.version, record.cri.schema) == ("containerd", "1.7.27", 2)
    assert record.cri.imports == ("/etc/containerd/conf.d/*.toml",)
    assert [runtime.running for runtime in record.runtimes] == [True]
    assert record.packages.matching("linux-image-*")
    place = record.storage.place("/var/lib/containerd")
    assert place
    assert place.free == 256 << 30
    assert record.confinement.cgroup == 2
    assert not record.driver.on_host
    assert record.firmware.secure_boot is False


@pytest.mark.parametrize(
    ("runtime", "kind", "version"),
    [
        ("cri-o://1.30.3", "cri-o", "1.30.3"),
        ("docker://27.3.1", "docker", "27.3.1"),
        ("containerd://2.1.0", "containerd", "2.1.0"),
    ],
)
def test_container_runtimes(sandbox: Path, runtime: str, kind: str, version: str) -> None:
    """Each is found by its process, and only it is there."""
    record = seen(HostSpec(name="r", runtime=runtime), sandbox)
    assert record.cri
    assert (record.cri.kind, record.cri.version, record.cri.cgroup_driver) == (kind, version, "systemd")
    assert len(record.runtimes) == 1


@pytest.mark.parametrize(
    ("kubelet", "distribution", "socket"),
    [
        ("v1.31.4+k3s1", "k3s", "/run/k3s/containerd/containerd.sock"),
        ("v1.31.5+rke2r1", "rke2", "/run/k3s/containerd/containerd.sock"),
        ("v1.31.3+k0s", "k0s", "/run/k0s/containerd.sock"),
    ],
)
def test_distributions_with_their_own_containerd(sandbox: Path, kubelet: str, distribution: str, socket: str) -> None:
    """Found by its process; its configuration is where that process reads it."""
    record = seen(HostSpec(name=distribution, kubelet=kubelet), sandbox)
    assert (record.kubernetes.distribution, record.kubernetes.socket) == (distribution, socket)
    assert record.cri
    assert record.cri.config == record.kubernetes.places.containerd_config
    assert record.cri.socket == socket


def test_driver_on_the_host(sandbox: Path) -> None:
    """Its loaded version and its package, on either family."""
    for os_id in ("ubuntu", "rocky"):
        record = seen(HostSpec(name=os_id, os_id=os_id, driver="535.183.01"), sandbox)
        assert (record.driver.loaded, record.driver.on_host) == ("535.183.01", True)
        assert record.packages.matching("nvidia-driver*")


def test_secure_boot_is_read_from_the_firmware(sandbox: Path) -> None:
    """The fifth byte of its variable."""
    record = seen(HostSpec(name="s", secure_boot=True), sandbox)
    assert record.firmware.secure_boot
    assert record.firmware.refuses_unsigned
    assert record.firmware.source == "efivar SecureBoot: 6 0 0 0 1"


def test_red_hat_host(sandbox: Path) -> None:
    """Another name for the image, another tool."""
    record = seen(HostSpec(name="r", os_id="rhel", os_version="9.4", kernel="5.14.0-427.el9.x86_64"), sandbox)
    assert record.nouveau.initramfs == "/boot/initramfs-5.14.0-427.el9.x86_64.img"
    assert record.nouveau.initramfs_tool == "dracut"
    assert record.pci.gpus == ()


def test_files_of_ours_are_read_line_by_line(sandbox: Path) -> None:
    """Also without a newline at the end, also empty."""
    record = seen(T4, sandbox, f"printf 'a\\nb' > {MODULES_FILE}; : > {NOUVEAU_FILE}")
    assert record.modules.own_file == ("a", "b")
    assert record.nouveau.own_file == ()
    assert record.modules.at_boot == {"a", "b"}


def test_modules_for_the_boot_are_gathered_from_everywhere(sandbox: Path) -> None:
    """The last line of a file without a newline does not swallow the next file."""
    record = seen(T4, sandbox, "printf ipmi-si >> /etc/modules; echo overlay > /etc/modules-load.d/k8s.conf")
    assert {"ipmi_si", "overlay"} <= record.modules.at_boot


@pytest.mark.parametrize(
    "line",
    ["blacklist nouveau", "  blacklist\tnouveau  # no", "install nouveau /bin/false"],
)
def test_blacklists_of_others_are_seen(sandbox: Path, line: str) -> None:
    """However they are written."""
    assert seen(T4, sandbox, f"printf '{line}\\n' > /etc/modprobe.d/other.conf").nouveau.blacklisted_elsewhere


def test_own_blacklist_is_not_that_of_somebody_else(sandbox: Path) -> None:
    """Otherwise we would take our own file for superfluous."""
    record = seen(T4, sandbox, f"echo blacklist nouveau > {NOUVEAU_FILE}")
    assert record.nouveau.blacklisted
    assert not record.nouveau.blacklisted_elsewhere


def test_commented_blacklist_is_none(sandbox: Path) -> None:
    """A line that begins with a hash says nothing."""
    assert not seen(T4, sandbox, "echo '# blacklist nouveau' > /etc/modprobe.d/other.conf").nouveau.blacklisted


def test_initramfs_older_than_our_blacklist_is_stale(sandbox: Path) -> None:
    """And no longer once it was rebuilt."""
    assert seen(T4, sandbox, f"echo blacklist nouveau > {NOUVEAU_FILE}").nouveau.initramfs_stale
    assert not seen(T4, sandbox, "update-initramfs -u").nouveau.initramfs_stale


@pytest.mark.parametrize(
    ("listing", "contains"),
    [
        ("echo usr/lib/modules/5.15.0/kernel/drivers/gpu/drm/nouveau/nouveau.ko", True),
        ("echo usr/lib/modules/5.15.0/kernel/fs/ext4/ext4.ko", False),
        ("echo usr/lib/modules/5.15.0/nouveau.ko; exit 1", None),
    ],
)
def test_initramfs_is_listed_while_nouveau_is_loaded(sandbox: Path, listing: str, *, contains: bool | None) -> None:
    """A listing that fails or breaks off says nothing; without nouveau nobody waits for it."""
    tool = f"printf '#!/bin/sh\n{listing}\n' > /.sandbox/bin/lsinitramfs; chmod +x /.sandbox/bin/lsinitramfs"
    loaded = HostSpec(name="n", gpus=(("1eb8", "0302"),), modules=("overlay", "nouveau"))
    assert seen(loaded, sandbox, f"{tool}; modprobe nouveau").nouveau.in_initramfs is contains
    assert seen(T4, sandbox, tool).nouveau.in_initramfs is None


def test_kernel_command_line_counts_and_is_otherwise_not_read(sandbox: Path) -> None:
    """It may hold secrets that are nobody's business."""
    host = hosts.ensure(T4, sandbox)
    (host.directory / "proc/cmdline").write_text("password=secret modprobe.blacklist=nouveau quiet\n")
    output = hosts.run(host, command(WANTED)).stdout.decode()
    assert "secret" not in output
    record = parse(output.splitlines())
    assert record
    assert record.nouveau.blacklisted_elsewhere


def test_requested_reboot_is_seen(sandbox: Path) -> None:
    """By the file that Debian's and Ubuntu's packages leave."""
    assert seen(T4, sandbox, "touch /run/reboot-required").system.reboot_required


def test_module_of_the_kernel_is_known_from_sys_alone(sandbox: Path) -> None:
    """Kernels without loadable modules have no index."""
    record = seen(HostSpec(name="mono"), sandbox, "rm -r /lib/modules/*; mkdir -p /sys/module/ipmi_msghandler")
    assert {"i2c_core", "ipmi_msghandler"} <= record.modules.built_in


RHEL = HostSpec(name="r", os_id="rhel", os_version="9.4", kernel="5.14.0-427.13.1.el9_4.x86_64")
SUSE = HostSpec(name="s", os_id="sles", os_version="15.6", kernel="6.4.0-150600.23.47-default")

# As dnf 4.14 printed it of a repository of made-up packages with the names and provides of Red Hat's.
REPOQUERY = """kernel-64k-devel = 5.14.0-427.13.1.el9_4
kernel-devel(x86-64) = 5.14.0-427.13.1.el9_4
kernel-devel-uname-r = 5.14.0-427.13.1.el9_4.x86_64
kernel-devel-uname-r = 5.14.0-427.13.1.el9_4.x86_64+64k"""


def written(path: str, text: str) -> str:
    """Return the command that writes a file of a host."""
    return f"mkdir -p {Path(path).parent} && printf '%s\\n' '{text}' > {path}"


def dnf(answer: str) -> str:
    """Return the command that gives a host a dnf that has package lists and prints an answer."""
    program = "/.sandbox/bin/dnf"
    script = f'#!/bin/sh\necho "{answer}"'
    return f"{written('/var/cache/dnf/a.solv', '')}; rm -f {program}; {written(program, script)}; chmod +x {program}"


APT, ZYPP = "/var/lib/apt/lists/a_Packages", "/var/cache/zypp/solv/{name}/solv.idx"
INDEX = "kernel-default-devel\t6.4.0-150600.23.{patch}\tx86_64"


@pytest.mark.parametrize(
    ("spec", "before", "lists", "offered"),
    [
        (T4, ":", "", False),
        (T4, written(APT, "Package: bash"), "apt", False),
        (T4, written(APT, f"Package: linux-headers-{T4.kernel}"), "apt", True),
        (RHEL, "rm -rf /var/cache/dnf", "", False),
        (RHEL, dnf(REPOQUERY), "dnf", True),
        (RHEL, dnf(""), "", False),
        (SUSE, written(ZYPP.format(name="updates"), INDEX.format(patch="47.2")), "zypp", True),
        (SUSE, written(ZYPP.format(name="updates"), INDEX.format(patch="53.1")), "zypp", False),
        (SUSE, written(ZYPP.format(name="@System"), INDEX.format(patch="47.2")), "", False),
    ],
)
def test_package_lists_tell_which_headers_there_are(
    sandbox: Path, spec: HostSpec, before: str, lists: str, *, offered: bool
) -> None:
    """Package managers name many kernels; of the installed ones alone."""
    record = seen(spec, sandbox, before)
    assert record.kernels.lists == lists
    assert record.kernels.offered == ((spec.kernel,) if offered else ())
    assert record.kernels.without_headers(spec.kernel) == ((spec.kernel,) if lists and not offered else ())


HERE, IN_A_CONTAINER = "ln -s /proc/self/ns /proc/5/ns", "mkdir /proc/5/ns; ln -s mnt:[2] /proc/5/ns/mnt"


def forged(name: str, uid: int, space: str) -> str:
    """Return the commands that give a host a process whose program leaves a mark where it is run."""
    program = f"/home/eve/{name}"
    return f"""
mkdir -p /home/eve /proc/5; {space}
printf '#!/bin/sh\\necho run >/home/eve/mark\\n' >{program}; chmod +x {program}; ln -s {program} /proc/5/exe
echo {name} >/proc/5/comm; printf '{name}\\0--config\\0/home/eve/x\\0--root-dir=/home/eve\\0' >/proc/5/cmdline
printf 'Name:\\t{name}\\nUid:\\t{uid}\\t0\\t0\\t0\\n' >/proc/5/status
cp /proc/812/limits /proc/5/limits; echo '0::/x.service' >/proc/5/cgroup
"""


@pytest.mark.parametrize("name", ["containerd", "crio", "dockerd", "kubelet", "k3s"])
def test_processes_of_others_than_root_are_neither_believed_nor_run(sandbox: Path, name: str) -> None:
    """Any user can give a process such a name, also one that runs a program of root's."""
    plain = seen(HostSpec(name="plain"), sandbox)
    record = seen(HostSpec(name="forged"), sandbox, forged(name, 1000, HERE))
    assert (record.runtimes, record.kubernetes, record.limits) == (plain.runtimes, plain.kubernetes, plain.limits)
    assert not (sandbox / "hosts/forged/home/eve/mark").exists()


def test_program_of_a_container_is_not_run(sandbox: Path) -> None:
    """Its path is another file on the host; root in a container is not root here."""
    record = seen(HostSpec(name="forged"), sandbox, forged("dockerd", 0, IN_A_CONTAINER))
    assert [(runtime.kind, runtime.binary) for runtime in record.runtimes if runtime.kind == "docker"] == [
        ("docker", "")
    ]
    assert not (sandbox / "hosts/forged/home/eve/mark").exists()
    seen(HostSpec(name="own"), sandbox, forged("dockerd", 0, HERE))
    assert (sandbox / "hosts/own/home/eve/mark").exists()


_INSTALLED = [pytest.param(shell, marks=pytest.mark.real) for shell in ("busybox sh", "mksh", "yash")]


@pytest.mark.parametrize("shell", ["dash", "bash --posix", *_INSTALLED])
def test_every_shell_says_the_same(shell: str) -> None:
    """On this very machine, whatever it is; /bin/sh is the reference."""
    program, *options = shell.split()
    said: dict[str, list[str]] = {}
    for _ in range(30):  # others start and end programs on this machine: a moment in which none does is enough
        said = {words[0]: said_by(words) for words in (["sh"], [program, *options])}
        if said[program] == said["sh"]:
            break
    assert said[program] == said["sh"]


def test_names_of_modules_are_no_shell_commands(tmp_path: Path) -> None:
    """No schema checks the arguments of an operation that is called by hand."""
    for name in ("$(touch a)", "'$(touch b)'", "c; do touch c; done; for c in c", "'; touch d; '"):
        subprocess.run(["sh", "-c", command([name], ("modules",))], capture_output=True, check=False, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def said_by(shell: list[str]) -> list[str]:
    """Return what a shell prints, of what does not change all the time."""
    said = subprocess.run([*shell, "-c", command(WANTED)], capture_output=True, check=True).stdout.decode()
    assert parse(said.splitlines())
    return [steady(line) for line in said.splitlines()]


def steady(line: str) -> str:
    """Return a line without what changes from one moment to the next: the time, free space, users of modules."""
    word = line.partition(" ")[0]
    return word if word in {"time", "place", "loaded"} else line
