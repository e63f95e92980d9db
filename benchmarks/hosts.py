"""How the host phase scales: a first run and no-change runs on 1, 20 and 50 hosts, against Ansible doing the same.

    python -m benchmarks.hosts [COUNT ...]        as root; default: 1 20 50

Each side has its own hosts, fresh ones, and both run by turns; of no-change runs the faster of two counts. The hosts
are those of tests/real/hosts/light.py, on this very machine, which therefore does their work, too. Ansible is
ansible-core from PATH with pipelining, 50 forks and connections that persist; the playbook is benchmarks/hosts.yaml.
A run that should have changed nothing and did ends the benchmark, and so do sides that did not do the same.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real.hosts import rootfs
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
"""Runs one side and tells whether it changed anything."""


@dataclass(frozen=True)
class Times:
    """Seconds of one side's runs."""

    first: float
    again: float


def main() -> None:
    """Measure every count and print a table with ratios."""
    if reason := rootfs.missing():
        sys.exit(f"benchmarks/hosts.py cannot run: {reason}")
    counts = [int(word) for word in sys.argv[1:]] or [1, 20, 50]
    compared = shutil.which("ansible-playbook")
    if not compared:
        print("ansible-playbook is not on PATH, so nothing is compared: pip install ansible-core")
    print("| hosts | first run | no change | ansible-core, first | no change | ratio, first | no change |")
    print("|---|---|---|---|---|---|---|")
    for count in counts:
        print(_row(count, *_measured(count, compare=bool(compared))), flush=True)


def _row(count: int, ours: Times, theirs: Times | None = None) -> str:
    cells = [f"{count}", f"{ours.first:.1f} s", f"{ours.again:.1f} s"]
    if theirs:
        cells += [f"{theirs.first:.1f} s", f"{theirs.again:.1f} s"]
        cells += [f"{theirs.first / ours.first:.1f}", f"{theirs.again / ours.again:.1f}"]
    return f"| {' | '.join(cells)} |"


def _measured(count: int, *, compare: bool) -> list[Times]:
    """Run both sides by turns, each on hosts of its own, and see that they did the same."""
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
    """Run one side and return its time; on hosts that are not fresh nothing may change."""
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
        command = ["ansible-playbook", "-i", str(folder / "hosts.ini"), str(PLAYBOOK)]
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


if __name__ == "__main__":
    main()
