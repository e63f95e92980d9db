"""Fifty hosts of which some fail, each in another way: the others finish, and each failure is one finding.

The tests go on from one another in their order.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.answers import Answer
from tests.contract.client import Server
from tests.real.hosts import built, state
from tests.real.hosts.light import LightHost, light_hosts
from tests.real.hosts.user import User

pytestmark = pytest.mark.hosts

COUNT = 50
SETTINGS: dict[str, Any] = {
    "host_prerequisites": {"kernel_modules": ["ipmi_msghandler"], "hold_packages": True},
    "ssh": {"patience": 20},
}
FILLS_ITS_DISK = """
cat >/usr/sbin/modprobe.new <<'EOF'
#!/bin/sh
set -- $(stat -f -c '%b %f %S' /.disk)
mount -o "remount,size=$((($1 - $2) * $3))" /.disk
EOF
chmod 755 /usr/sbin/modprobe.new && mv /usr/sbin/modprobe.new /usr/sbin/modprobe
"""


def _with_another_key(host: LightHost) -> None:
    host.run("true")  # so that the first key is known
    host.change_host_key()


@dataclass(frozen=True, slots=True)
class Failure:
    """One kind of failure, and what is said about it."""

    provoke: Callable[[LightHost], object]
    code: str
    seen: str
    fix: str


FAILURES = {
    3: Failure(lambda host: host.dies_at("modprobe"), "GP687", "connection ended", "run again"),
    5: Failure(lambda host: host.ask_for_sudo_password("geheim"), "GP688", "a password is required", "NOPASSWD"),
    8: Failure(lambda host: host.fill_disk(), "GP652", "GiB", ""),
    11: Failure(lambda host: host.run(FILLS_ITS_DISK), "GP689", "I/O error", "df -h"),
    13: Failure(_with_another_key, "GP682", "does not match", "ssh-keygen -f"),
    21: Failure(lambda host: host.freezes_at("apt-mark"), "GP686", "did not answer", "console"),
    34: Failure(lambda host: host.freeze(), "GP686", "No existing session", "console"),
    40: Failure(lambda host: host.kill(), "GP685", "Connection refused", "is sshd running"),
    45: Failure(
        lambda host: host.fails_at("apt-mark", "E: out of luck"), "GP694", "E: out of luck", "pyinfra INVENTORY"
    ),
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LightHost, ...]]:
    if reason := built.namespaces_missing():
        pytest.skip(reason)
    with light_hosts(tmp_path_factory.mktemp("fifty"), COUNT) as running:
        yield running


@pytest.fixture(scope="module")
def run(user: User, hosts: tuple[LightHost, ...]) -> Answer:
    for number, failure in FAILURES.items():
        failure.provoke(hosts[number - 1])
    return user.apply()


def test_the_others_are_finished(run: Answer, hosts: tuple[LightHost, ...]) -> None:
    assert run.code == 1, run.text
    sound = [host for number, host in enumerate(hosts, 1) if number not in FAILURES]
    for host in sound:
        _assert_written(host)
    for host in sound[::9]:
        _assert_prepared(host)


def _assert_written(host: LightHost) -> None:
    """What the last and the first operation leave behind."""
    assert "ipmi_msghandler" in (host.root / "etc/modules-load.d/gpu-provision.conf").read_text()
    assert (host.root / "var/lib/gpu-provision/held-packages").exists()


def _assert_prepared(host: LightHost) -> None:
    there = state.of(host)
    assert "ipmi_msghandler" in state.loaded(there)
    assert "nouveau" not in state.loaded(there)
    assert "linux-image-6.1.0-1-amd64" in there.check_output("apt-mark showhold")


@pytest.mark.parametrize("number", FAILURES)
def test_each_failure_is_one_finding_with_its_remedy(run: Answer, hosts: tuple[LightHost, ...], number: int) -> None:
    expected = FAILURES[number]
    name = hosts[number - 1].name
    (found,) = [each for each in run.document["errors"] if each["where"] == name]
    assert found["code"] == expected.code, found
    assert expected.seen in found["evidence"]
    assert expected.fix in found["fix"]


def test_the_cluster_phase_is_held_back(run: Answer, cluster: Server) -> None:
    (held,) = [each for each in run.document["errors"] if each["code"] == "GP604"]
    assert len(run.document["errors"]) == len(FAILURES) + 1
    assert held["where"].startswith("light-03, light-05, light-08, ")
    namespaces = {each["metadata"]["name"] for each in cluster.get("/api/v1/namespaces")["items"]}
    assert not namespaces & {"gpu-operator-resources", "node-feature-discovery"}


GONE = {3, 21, 40}
"""These stay broken: two are dead, and on one a command hangs."""


def _repair(host: LightHost, sound: LightHost) -> None:
    host.thaw()
    host.known_hosts.unlink(missing_ok=True)
    host.run("mount -o remount,size=20G /.disk")
    for file in ("usr/sbin/modprobe", "usr/bin/apt-mark", "etc/sudoers.d/admin"):
        (host.root / file).write_bytes((sound.root / file).read_bytes())


@pytest.mark.usefixtures("run")
def test_the_next_run_finishes_what_was_repaired(user: User, hosts: tuple[LightHost, ...]) -> None:
    """Hosts that were finished are left alone; a run after it changes no file anywhere.

    It asks each host two things: one command reads it, another one says how it is in the end.
    """
    for number in FAILURES.keys() - GONE:
        _repair(hosts[number - 1], hosts[0])
    living = [host for number, host in enumerate(hosts, 1) if number not in GONE]
    limit = ",".join(host.name for host in living)
    second = user.apply("--hosts-only", "--limit", limit)
    assert second.code == 0, second.text
    changed = [int(host["host"].removeprefix("light-")) for host in second.document["hosts"] if host["changes"]]
    assert changed == sorted(FAILURES.keys() - GONE)
    for number in changed:
        _assert_written(hosts[number - 1])
        _assert_prepared(hosts[number - 1])
    written, commands = [host.written() for host in living], [host.commands_run() for host in living]
    assert not any(user.apply("--hosts-only", "--limit", limit).changes)
    assert [host.written() for host in living] == written
    assert [host.commands_run() - run for host, run in zip(living, commands, strict=True)] == [2] * len(living)


FEW = slice(23, 29)
WAITS = "#!/bin/sh\ntouch /reached\nsleep 3600\n"


class Few:
    """Some hosts that nothing was wrong with, and their owner, who wants more of them each time."""

    def __init__(self, hosts: tuple[LightHost, ...], cluster: Server, folder: Path) -> None:
        self.hosts, self.folder, self._cluster = hosts[FEW], folder, cluster
        self.waits = self.hosts[2]

    def wanting(self, **prerequisites: object) -> User:
        more = {**SETTINGS["host_prerequisites"], **prerequisites}
        return User(self.folder, self.hosts, self._cluster.kubeconfig, {**SETTINGS, "host_prerequisites": more})

    @contextlib.contextmanager
    def stopped_in_the_middle(self, user: User) -> Iterator[subprocess.Popen[str]]:
        """Begin a run and have it wait where one of the hosts loads its modules."""
        modprobe = self.waits.root / "usr/sbin/modprobe"
        was = modprobe.read_bytes()
        modprobe.write_text(WAITS)
        with user.started("apply", "--yes", "--json", "--hosts-only") as running:
            deadline = time.monotonic() + 120
            while not (self.waits.root / "reached").exists():
                assert running.poll() is None, running.communicate()
                assert time.monotonic() < deadline, "it does not get there"
                time.sleep(0.1)
            yield running
        modprobe.write_bytes(was)
        (self.waits.root / "reached").unlink()

    def finished(self, user: User) -> bool:
        """Run again and return whether a run after that has nothing left to do."""
        again = user.apply("--hosts-only")
        assert again.code == 0, again.text
        return not any(user.apply("--hosts-only").changes)

    def all_have(self, module: str) -> bool:
        return all(module in state.loaded(state.of(host)) for host in self.hosts)


@pytest.fixture(scope="module")
def few(hosts: tuple[LightHost, ...], cluster: Server, tmp_path_factory: pytest.TempPathFactory) -> Few:
    return Few(hosts, cluster, tmp_path_factory.mktemp("few"))


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("module", "status", "code"), [("ipmi_devintf", 130, "GP003"), ("ipmi_si", 1, "GP607")])
def test_a_run_that_ends_early_is_finished_by_the_next(few: Few, module: str, status: int, code: str) -> None:
    """Ctrl-C does not wait for the host that hangs; the worker is killed as the kernel does when memory runs out."""
    user = few.wanting(kernel_modules=[module])
    with few.stopped_in_the_middle(user) as running:
        if code == "GP003":
            running.send_signal(signal.SIGINT)
        else:
            (worker,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            os.kill(int(worker), signal.SIGKILL)
        out, err = running.communicate(timeout=60)
    assert running.returncode == status, err
    (error,) = json.loads(out)["errors"]
    assert error["code"] == code
    if code == "GP003":
        assert "Last begun: Kernel modules loaded now and at boot (light-24, " in error["evidence"]
    assert few.finished(user)
    assert few.all_have(module)


@pytest.mark.usefixtures("run")
def test_two_runs_at_once_end_as_one_does(few: Few) -> None:
    """Each waits for the other's command: files end whole, and every original is kept once."""
    user = few.wanting(sysctls={"vm.max_map_count": "262144"})
    with contextlib.ExitStack() as both:
        runs = [both.enter_context(user.started("apply", "--yes", "--json", "--hosts-only")) for _ in range(2)]
        ended = [(*running.communicate(timeout=300), running.returncode) for running in runs]
    assert [code for *_, code in ended] == [0, 0], ended
    for host in few.hosts:
        listed = (host.root / "var/lib/gpu-provision/originals/list").read_text().splitlines()
        assert len(listed) == len(set(listed))
        assert state.of(host).sysctl("vm.max_map_count") == 262144
    assert few.finished(user)
