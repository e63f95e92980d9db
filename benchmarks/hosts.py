"""The host phase on hosts by the dozen, against Ansible's playbook for the same; needs root.

Each side has fresh hosts of its own, and both run by turns; of runs without changes the faster of two counts. The hosts
are those of tests/real/hosts/light.py and share the processors of this machine. Ansible runs with pipelining, 50 forks
and connections that persist; the playbook is hosts.yaml.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.install import ansible_program
from benchmarks.table import Row
from tests.real.hosts import built
from tests.real.hosts.light import LightHost, light_hosts
from tests.real.hosts.user import User

PLAYBOOK = Path(__file__).with_name("hosts.yaml")
SETTINGS = {
    "host_prerequisites": {
        "kernel_modules": ["i2c_core", "ipmi_msghandler", "ipmi-devintf"],
        "blacklist_nouveau": True,
        "hold_packages": True,
        "sysctls": {"vm.max_map_count": "262144"},
    }
}
FILES = (
    "etc/modules-load.d/gpu-provision.conf",
    "etc/modprobe.d/gpu-provision-nouveau.conf",
    "etc/sysctl.d/90-gpu-provision.conf",
)
_ANSIBLE = {
    "ANSIBLE_FORKS": "50",
    "ANSIBLE_PIPELINING": "True",
    "ANSIBLE_NOCOWS": "1",
    "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
    "ANSIBLE_DEPRECATION_WARNINGS": "False",
}
_SSH = "-o ControlMaster=auto -o ControlPersist=60s -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={}"


Run = Callable[[], bool]
"""Runs one side; returns whether it changed anything."""


@dataclass(frozen=True)
class Times:
    """Seconds of one side's runs."""

    first: float
    again: float


def rows(counts: Iterable[int]) -> Iterator[Row]:
    """Measure so many hosts."""
    if reason := built.namespaces_missing():
        yield Row("hosts", "", f"not measured: {reason}")
        return
    for count in counts:
        ours, *theirs = _measured(count, compare=bool(ansible_program()))
        for measure in ("first", "again"):
            own, others = getattr(ours, measure), [getattr(each, measure) for each in theirs]
            instead = "; ".join(f"ansible {other:.1f} s, {other / own:.1f} times as long" for other in others)
            yield Row(f"hosts, {measure} run", f"{count} hosts", f"{own:.1f} s", instead=instead)


def _measured(count: int, *, compare: bool) -> list[Times]:
    """Run both sides by turns, each on hosts of its own; exit unless they did the same."""
    with tempfile.TemporaryDirectory() as name, light_hosts(Path(name), 2 * count) as hosts:
        ours, theirs = hosts[:count], hosts[count:]
        sides = [_gpu_provision(Path(name, "user"), ours)]
        if compare:
            sides.append(_ansible(Path(name, "playbook"), theirs))
        rounds = [[_seconds(run, fresh=fresh) for run in sides] for fresh in (True, False, False)]
        _assert_alike((*ours, *theirs) if compare else ours)
    first, *again = rounds
    return [Times(first[side], min(each[side] for each in again)) for side in range(len(sides))]


def _seconds(run: Run, *, fresh: bool) -> float:
    """Run one side and return its time; exit if it changes a host that is prepared, or no fresh one."""
    began = time.perf_counter()
    changed = run()
    seconds = time.perf_counter() - began
    if changed is not fresh:
        sys.exit(f"a run on {'fresh' if fresh else 'prepared'} hosts changed {'something' if changed else 'nothing'}")
    return seconds


def _gpu_provision(folder: Path, hosts: Sequence[LightHost]) -> Run:
    user = User(folder, tuple(hosts), folder / "no-cluster", SETTINGS)

    def run() -> bool:
        said = user.apply("--hosts-only")
        if said.code:
            sys.exit(f"gpu-provision failed:\n{said.text[-2000:]}")
        return any(said.changes)

    return run


def _ansible(folder: Path, hosts: Sequence[LightHost]) -> Run:
    folder.mkdir()
    lines = [_inventory_line(number, host) for number, host in enumerate(hosts)]
    (folder / "hosts.ini").write_text("\n".join(["[all]", *lines, ""]))
    own = {"ANSIBLE_HOME": str(folder), "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "s"), "HOME": str(folder)}
    ssh = {"ANSIBLE_SSH_ARGS": _SSH.format(folder / "known_hosts")}

    def run() -> bool:
        command = [ansible_program(), "-i", str(folder / "hosts.ini"), str(PLAYBOOK)]
        environment = {**os.environ, **_ANSIBLE, **own, **ssh}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"ansible-playbook failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return re.search(r"\bchanged=[1-9]", done.stdout) is not None

    return run


def _inventory_line(number: int, host: LightHost) -> str:
    user = "admin" if number else "root"
    where = f"ansible_host=127.0.0.1 ansible_port={host.port} ansible_user={user}"
    return f"{host.name} {where} ansible_ssh_private_key_file={host.key}"


def _assert_alike(hosts: Sequence[LightHost]) -> None:
    """Exit unless all hosts are in the same state: files but for comments, packages held, sysctls, modules."""
    states = {_state(host) for host in hosts}
    if len(states) != 1:
        sys.exit(f"the two sides did not do the same: {states}")


def _state(host: LightHost) -> tuple[str, ...]:
    texts = ((host.root / file).read_text().splitlines() for file in FILES)
    files = ("\n".join(line for line in lines if not line.startswith("#")) for lines in texts)
    modules = sorted(line.split()[0] for line in (host.root / "proc/modules").read_text().splitlines())
    held = (host.root / "var/lib/dpkg/status").read_text().count("Status: hold ok installed")
    return (*files, " ".join(modules), str(held), (host.root / "proc/sys/vm/max_map_count").read_text())
