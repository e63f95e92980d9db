"""What the command prints on hosts of many kinds, and what is read of it; see systems/."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.hosts.facts.host import ALL, HostRecord, command, parse
from gpu_provision.hosts.facts.kernel import UNKNOWN_USERS
from gpu_provision.hosts.scripts import MODULES_FILE, NOUVEAU_FILE
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts.spec import HostSpec
from tests import data_file

SYSTEMS = Path(__file__).parent / "systems"
CASES = sorted(path.stem for path in SYSTEMS.glob("*.txt"))


def record_of(case: str) -> HostRecord:
    record = parse((SYSTEMS / f"{case}.txt").read_text().splitlines())
    assert record
    return record


def read(*lines: str) -> HostRecord:
    """Return the record of some lines, which need not name a kernel."""
    record = parse([*lines, "[end]"])
    assert record
    return record


@pytest.mark.parametrize("case", CASES)
def test_output_of_a_host_becomes_its_record(case: str) -> None:
    """Every kind of host is read as its requirement says."""
    expected, record = data_file.document((SYSTEMS / f"{case}.yaml").read_text()), record_of(case)
    assert expected.pop("requirement")
    for section, fields in expected.items():
        if fields is None:
            assert getattr(record, section) is None
            continue
        seen = {path: _plain(_value(getattr(record, section), path)) for path in fields}
        assert seen == fields


def test_record_can_be_printed_as_json() -> None:
    """Stock pyinfra asks for it by ``to_json``; nothing is left out, nothing unsorted."""
    record = record_of("ubuntu-24.04-h100")
    printed = json.loads(json.dumps(record.to_json()))
    assert set(printed) == {each.name for each in dataclasses.fields(HostRecord)}
    assert printed["kernel"]["running"] == record.kernel.running
    assert printed["modules"]["loaded"] == dict(record.modules.loaded)
    assert printed["read"] == sorted(record.read)
    assert len(printed["pci"]["devices"]) == len(record.pci.devices)


def _value(part: Any, path: str) -> Any:
    """Follow a path such as ``gpus.device`` or ``next.release``; of a list, take it from each element."""
    for step in path.split("."):
        if isinstance(part, (tuple, list)) and not hasattr(part, step):
            part = [getattr(each, step) for each in part]
        else:
            part = part.get(step) if isinstance(part, dict) else getattr(part, step)
    return part


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize(
    "output", [[], ["sh: uname: not found"], ["[kernel]", "running ", "[end]"], ["[kernel]", "running 6.1", "[pci]"]]
)
def test_output_without_a_kernel_or_an_end_is_no_record(output: list[str]) -> None:
    """Half of the truth would look like a host without a GPU."""
    assert parse(output) is None


def test_record_knows_what_was_read() -> None:
    """A section that was not read is not taken for an empty one."""
    record = read("[pci]", "device 0000:01:00.0 0x10de 0x1eb8 0x030200 ", "[asked]", "modules a b")
    assert record.read == {"pci"}
    assert record.asked == {"a", "b"}
    assert record_of("minimal").read < set(ALL)


def test_no_line_of_a_host_passes_for_a_heading() -> None:
    """Content of files stands behind a word."""
    record = read("[kernel]", "running 6.1", "[modules]", "own [pci]", "own a")
    assert record.modules.own_file == ("[pci]", "a")


def test_kernel_that_cannot_unload_hides_the_users_of_a_module() -> None:
    """A dash instead of a number is not zero users."""
    assert read("[modules]", "loaded nouveau 100 - - Live 0x0").modules.loaded == {"nouveau": UNKNOWN_USERS}


def test_an_empty_file_of_the_tool_differs_from_no_file() -> None:
    """It may have been emptied; that is drift."""
    assert read("[modules]", "own ").modules.own_file == ()
    assert read("[modules]").modules.own_file is None


def test_blacklist_of_another_module_is_not_nouveaus() -> None:
    """Only the exact module counts."""
    record = read("[nouveau]", "modprobe blacklist nouveau_drm", "cmdline modprobe.blacklist=nouveaux,radeon")
    assert not record.nouveau.blacklisted


def test_runtime_of_an_unreadable_process_is_the_installed_one() -> None:
    """Its version then comes from there."""
    config = "config /etc/containerd/config.toml"
    installed = ("binary /usr/bin/containerd", "version containerd containerd.io 1.7.27 abc")
    lines = ("runtime run containerd", config, "end ", "runtime have containerd", *installed, config, "end ")
    (runtime,) = read("[runtimes]", *lines).runtimes
    assert (runtime.running, runtime.binary, runtime.version) == (True, "/usr/bin/containerd", "1.7.27")


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [("/run/cri-dockerd.sock", "docker"), ("/run/containerd/containerd.sock", "containerd"), ("/run/other.sock", None)],
)
def test_runtime_of_the_kubelet_is_the_one_that_it_speaks_to(endpoint: str, kind: str | None) -> None:
    """Docker's own containerd is not, where cri-dockerd stands between."""
    containerd = ("runtime run containerd", "config /etc/containerd/config.toml", "end ")
    docker = ("runtime run docker", "config /etc/docker/daemon.json", "socket /run/docker.sock", "end ")
    kubelet = ("process kubelet", f"flag kubelet --container-runtime-endpoint=unix://{endpoint}", "kubelet ")
    record = read("[runtimes]", *containerd, *docker, "[kubernetes]", *kubelet)
    assert (record.cri.kind if record.cri else None) == kind


@pytest.mark.parametrize(
    ("lines", "path", "value"),
    [
        (("[pci]", "device 0000:01:00.0 0x10de 0x1eb8 0x0302"), "devices", ()),
        (("[modules]", "loaded nvidia"), "loaded", {}),
        (("[packages]", "package i nvidia-dri"), "installed", ()),
        (("[storage]", "place /var /dev/sda1 102400 51200 512"), "places", ()),
        (("[services]", "holder 41 - /dev/nv"), "holders", ()),
        (("[limits]", "limit 812 containerd - memlock 8388608"), "runtimes", ()),
        (("[hugepages]", "pages 0kB 3", "pages 2048kB ", "pages ²kB 1"), "pages", {}),
        (("[hugepages]", "attempt 1Gi 16", "attempt 16 1Gi 3"), "attempts", {}),
        (("[kernel]", "running 6.1", f"page-size {'9' * 5000}"), "page_size", 0),
        (("[system]", "time ٣"), "time", None),
        (("[kubernetes]", "mark "), "distribution", ""),
    ],
)
def test_line_that_cannot_be_read_says_nothing(lines: tuple[str, ...], path: str, value: object) -> None:
    """Half a line would name another device, module or package than there is."""
    record = read(*lines)
    assert getattr(getattr(record, lines[0].strip("[]")), path) == value


@pytest.mark.parametrize(
    "lines",
    [
        ("runtime run containerd", "config /etc/x"),
        ("runtime ", "end "),
        ("runtime run", "end "),
        ("runtime run contai", "end "),
    ],
)
def test_runtime_whose_description_breaks_off_is_left_out(lines: tuple[str, ...]) -> None:
    """The one after it is read, with nothing of it."""
    (runtime,) = read("[runtimes]", *lines, "runtime have docker", "binary /usr/bin/dockerd", "end ").runtimes
    assert (runtime.kind, runtime.running, runtime.config) == ("docker", False, "")


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


def runtime(kind: str, version: str) -> dict[str, object]:
    """Return what is expected of a host with one container runtime."""
    return {"cri.kind": kind, "cri.version": version, "cri.cgroup_driver": "systemd", "runtimes.running": [True]}


def distribution(name: str, socket: str) -> dict[str, object]:
    """Return what is expected of a host with a distribution that has its own containerd."""
    return {"kubernetes.distribution": name, "kubernetes.socket": socket, "cri.socket": socket}


K3S = "/run/k3s/containerd/containerd.sock"
RED_HAT = HostSpec(name="r", os_id="rhel", os_version="9.4", kernel="5.14.0-427.el9.x86_64")
OTHER_FILE = "/etc/modprobe.d/other.conf"
SIMULATED: dict[str, tuple[HostSpec, str, dict[str, object]]] = {
    "a fresh node of Ubuntu": (
        T4,
        ":",
        {
            **runtime("containerd", "1.7.27"),
            "kernel.running": "5.15.0-122-generic",
            "kernel.architecture": "x86_64",
            "system.id": "ubuntu",
            "system.version": "22.04",
            "modules.built_in": ["i2c_core"],
            "modules.own_file": None,
            "pci.gpus.device": ["1eb8"],
            "nouveau.initramfs_tool": "update-initramfs",
            "nouveau.blacklisted": False,
            "nouveau.own_file": None,
            "kubernetes.distribution": "kubeadm",
            "kubernetes.cgroup_driver": "systemd",
            "cri.schema": 2,
            "cri.imports": ["/etc/containerd/conf.d/*.toml"],
            "storage.places.free": [256 << 30] * 6,
            "driver.on_host": False,
            "firmware.secure_boot": False,
        },
    ),
    "CRI-O": (HostSpec(name="r", runtime="cri-o://1.30.3"), ":", runtime("cri-o", "1.30.3")),
    "Docker": (HostSpec(name="r", runtime="docker://27.3.1"), ":", runtime("docker", "27.3.1")),
    "containerd 2": (HostSpec(name="r", runtime="containerd://2.1.0"), ":", runtime("containerd", "2.1.0")),
    "k3s": (HostSpec(name="k3s", kubelet="v1.31.4+k3s1"), ":", distribution("k3s", K3S)),
    "RKE2": (HostSpec(name="rke2", kubelet="v1.31.5+rke2r1"), ":", distribution("rke2", K3S)),
    "k0s": (HostSpec(name="k0s", kubelet="v1.31.3+k0s"), ":", distribution("k0s", "/run/k0s/containerd.sock")),
    "a driver on Ubuntu": (HostSpec(name="u", driver="535.183.01"), ":", {"driver.loaded": "535.183.01"}),
    "a driver on Rocky": (HostSpec(name="r", os_id="rocky", driver="535.183.01"), ":", {"driver.on_host": True}),
    "Secure Boot by the fifth byte of the firmware's variable": (
        HostSpec(name="s", secure_boot=True),
        ":",
        {"firmware.refuses_unsigned": True, "firmware.source": "efivar SecureBoot: 6 0 0 0 1"},
    ),
    "Red Hat's initramfs": (
        RED_HAT,
        ":",
        {
            "nouveau.initramfs": "/boot/initramfs-5.14.0-427.el9.x86_64.img",
            "nouveau.initramfs_tool": "dracut",
            "pci.gpus": [],
        },
    ),
    "own files without a last newline, and empty": (
        T4,
        f"printf 'a\\nb' > {MODULES_FILE}; : > {NOUVEAU_FILE}",
        {"modules.own_file": ["a", "b"], "nouveau.own_file": []},
    ),
    "bytes that are no UTF-8": (
        T4,
        rf"printf '# caf\351 caf\303\251\nloop\n' >{MODULES_FILE}",
        {"modules.own_file": ["# caf café", "loop"]},
    ),
    "a blacklist of others": (
        T4,
        f"printf '  blacklist\\tnouveau  # no\\n' > {OTHER_FILE}",
        {"nouveau.blacklisted_elsewhere": True},
    ),
    "an install command instead": (
        T4,
        f"echo 'install nouveau /bin/false' > {OTHER_FILE}",
        {"nouveau.blacklisted_elsewhere": True},
    ),
    "a comment": (T4, f"echo '# blacklist nouveau' > {OTHER_FILE}", {"nouveau.blacklisted": False}),
    "the own blacklist is not that of others": (
        T4,
        f"echo blacklist nouveau > {NOUVEAU_FILE}",
        {"nouveau.blacklisted": True, "nouveau.blacklisted_elsewhere": False},
    ),
    "a requested reboot": (T4, "touch /run/reboot-required", {"system.reboot_required": True}),
    "modules of a kernel without an index": (
        HostSpec(name="mono"),
        "rm -r /lib/modules/*; mkdir -p /sys/module/ipmi_msghandler",
        {"modules.built_in": ["i2c_core", "ipmi_msghandler"]},
    ),
}


@pytest.mark.parametrize(("spec", "before", "expected"), SIMULATED.values(), ids=SIMULATED)
def test_simulated_host_is_read(sandbox: Path, spec: HostSpec, before: str, expected: dict[str, object]) -> None:
    record = seen(spec, sandbox, before)
    assert {path: _plain(_value(record, path)) for path in expected} == expected


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
    """A listing that fails or breaks off says nothing; without nouveau it is not made."""
    tool = f"printf '#!/bin/sh\n{listing}\n' > /.sandbox/bin/lsinitramfs; chmod +x /.sandbox/bin/lsinitramfs"
    loaded = HostSpec(name="n", gpus=(("1eb8", "0302"),), modules=("overlay", "nouveau"))
    assert seen(loaded, sandbox, f"{tool}; modprobe nouveau").nouveau.in_initramfs is contains
    assert seen(T4, sandbox, tool).nouveau.in_initramfs is None


def test_kernel_command_line_counts_and_is_otherwise_not_read(sandbox: Path) -> None:
    """It may hold secrets."""
    host = hosts.ensure(T4, sandbox)
    (host.directory / "proc/cmdline").write_text("password=secret modprobe.blacklist=nouveau quiet\n")
    output = hosts.run(host, command(WANTED)).stdout.decode()
    assert "secret" not in output
    record = parse(output.splitlines())
    assert record
    assert record.nouveau.blacklisted_elsewhere


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
def test_processes_of_other_users_are_neither_believed_nor_run(sandbox: Path, name: str) -> None:
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


_INSTALLED = [pytest.param(shell, marks=pytest.mark.real) for shell in ("mksh", "yash")]


@pytest.mark.parametrize("shell", ["dash", "bash --posix", *_INSTALLED])
def test_every_shell_says_the_same(sandbox: Path, shell: str) -> None:
    """On one simulated host; only the time differs."""
    host = hosts.ensure(T4, sandbox)
    said = [
        hosts.run(host, f"{program} -c {shlex.quote(command(WANTED))}").stdout.decode().splitlines()
        for program in ("sh", shell)
    ]
    assert parse(said[0])
    first, second = ([line for line in lines if not line.startswith("time ")] for lines in said)
    assert first == second


@pytest.mark.real
def test_busybox_says_the_same() -> None:
    """On this machine and with no other process: busybox prefers its own programs to those of a simulated host."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    said = [
        subprocess.run([*alone, *shell, "-c", command(WANTED)], capture_output=True, check=True).stdout.decode()
        for shell in (["sh"], ["busybox", "sh"])
    ]
    assert parse(said[0].splitlines())
    first, second = ([_CHANGING.sub("", line) for line in text.splitlines()] for text in said)
    assert first == second


_CHANGING = re.compile(r"(?<=^time) .*|(?<=^place) .*|(?<=^loaded) .*")  # the time, free space, users of modules


def test_names_of_modules_are_no_shell_commands(tmp_path: Path) -> None:
    """No schema checks the arguments of an operation that is called by hand."""
    for name in ("$(touch a)", "'$(touch b)'", "c; do touch c; done; for c in c", "'; touch d; '"):
        subprocess.run(["sh", "-c", command([name], ("modules",))], capture_output=True, check=False, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
