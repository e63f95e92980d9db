"""What the command prints on hosts of many kinds, and what is read of it; see systems/."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.hosts.facts.host import ALL, HostFacts, command, parse
from gpu_provision.hosts.facts.packages import Package, Packages
from gpu_provision.hosts.scripts import MODULES_FILE, NOUVEAU_FILE
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts.spec import HostSpec
from tests import data_file

SYSTEMS = Path(__file__).parent / "systems"
DATA = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
CASES = sorted(path.stem for path in SYSTEMS.glob("*.txt"))


def record_of(case: str) -> HostFacts:
    record = parse((SYSTEMS / f"{case}.txt").read_text().splitlines())
    assert record
    return record


def read(*lines: str) -> HostFacts:
    """Return the record of some lines, which need not name a kernel."""
    record = parse([*lines, "[end]"])
    assert record
    return record


@pytest.mark.parametrize("case", CASES)
def test_output_of_a_host_becomes_its_record(case: str) -> None:
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
    assert set(printed) == {each.name for each in dataclasses.fields(HostFacts)}
    assert printed["kernel"]["running"] == record.kernel.running
    assert printed["modules"]["loaded"] == dict(record.modules.loaded)
    assert printed["read"] == sorted(record.read)
    assert len(printed["pci"]["devices"]) == len(record.pci.devices)


def _value(part: Any, path: str) -> Any:
    """Follow a path such as ``gpus.device`` or ``next.release``; of a list, take it from each element."""
    for step in path.split("."):
        if isinstance(part, (tuple, list)) and not hasattr(part, step):
            part = [each[step] if isinstance(each, dict) else getattr(each, step) for each in part]
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
    record = read("[pci]", "device 0000:01:00.0 0x10de 0x1eb8 0x030200 ", "[asked]", "modules a b")
    assert record.read == {"pci"}
    assert record.asked == {"a", "b"}
    assert record_of("minimal").read < set(ALL)


def values(record: HostFacts, read: dict[str, Any]) -> dict[str, Any]:
    """Return what a record has at some paths; a path ends where there is nothing."""
    return {path: _plain(_value(record, path)) for path in read}


@pytest.mark.parametrize("case", DATA["lines"], ids=lambda case: case["case"])
def test_lines_are_read(case: dict[str, Any]) -> None:
    assert values(read(*case["lines"]), case["read"]) == case["read"]


@pytest.mark.parametrize("case", DATA["kept"], ids=str)
def test_what_keeps_a_package_is_known(case: dict[str, Any]) -> None:
    package = Package(case["name"], "1")
    rules = {name: tuple(case[name]) for name in ("locks", "unattended_exceptions") if name in case}
    packages = Packages(**rules)
    assert packages.is_kept(package) is case["kept"]
    assert packages.is_kept(replace(package, held=True))


WANTED = ("i2c-core", "ipmi_msghandler")
T4 = HostSpec(name="t4-1", gpus=(("1eb8", "0302"),))


def host_record(spec: HostSpec, sandbox: Path, before: str = ":") -> HostFacts:
    """Return what the fact says about a new simulated host on which something was done before."""
    host = hosts.ensure(spec, sandbox)
    hosts.run(host, f"modules_file={MODULES_FILE}; nouveau_file={NOUVEAU_FILE}; {before}").check_returncode()
    done = hosts.run(host, command(WANTED))
    assert (done.returncode, done.stderr) == (0, b"")
    record = parse(done.stdout.decode().splitlines())
    assert record
    return record


@pytest.mark.parametrize("case", DATA["simulated"], ids=lambda case: case["case"])
def test_simulated_host_is_read(sandbox: Path, case: dict[str, Any]) -> None:
    lists = {name: tuple(map(tuple, value)) for name, value in case["spec"].items() if name == "gpus"}
    modules = {name: tuple(value) for name, value in case["spec"].items() if name == "modules"}
    record = host_record(HostSpec(**{**case["spec"], **lists, **modules}), sandbox, case.get("before", ":"))
    assert values(record, case["read"]) == case["read"]


def test_kernel_command_line_counts_and_is_otherwise_not_read(sandbox: Path) -> None:
    """It may hold secrets."""
    host = hosts.ensure(T4, sandbox)
    (host.directory / "proc/cmdline").write_text("password=secret modprobe.blacklist=nouveau quiet\n")
    output = hosts.run(host, command(WANTED)).stdout.decode()
    assert "secret" not in output
    record = parse(output.splitlines())
    assert record
    assert record.nouveau.blacklisted_elsewhere


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
    plain = host_record(HostSpec(name="plain"), sandbox)
    record = host_record(HostSpec(name="forged"), sandbox, forged(name, 1000, HERE))
    assert (record.runtimes, record.kubernetes, record.limits) == (plain.runtimes, plain.kubernetes, plain.limits)
    assert not (sandbox / "hosts/forged/home/eve/mark").exists()


def test_program_of_a_container_is_not_run(sandbox: Path) -> None:
    """Its path is another file on the host; root in a container is not root here."""
    record = host_record(HostSpec(name="forged"), sandbox, forged("dockerd", 0, IN_A_CONTAINER))
    assert [(runtime.kind, runtime.binary) for runtime in record.runtimes if runtime.kind == "docker"] == [
        ("docker", "")
    ]
    assert not (sandbox / "hosts/forged/home/eve/mark").exists()
    host_record(HostSpec(name="own"), sandbox, forged("dockerd", 0, HERE))
    assert (sandbox / "hosts/own/home/eve/mark").exists()


_INSTALLED = [pytest.param(shell, marks=pytest.mark.real) for shell in ("mksh", "yash")]


@pytest.mark.parametrize("shell", ["dash", "bash --posix", *_INSTALLED])
def test_every_shell_says_the_same(sandbox: Path, shell: str) -> None:
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
