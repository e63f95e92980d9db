"""How a host changes its container runtime: the background scripts, with programs that only act as a host's do."""

from __future__ import annotations

import difflib
import os
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.hosts import background_script, scripts
from gpu_provision.hosts.background_script import ScriptOutcome, ScriptResult, parse, restart_runtime
from gpu_provision.hosts.facts import SectionOutput
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.runtime import DEBIAN, RHEL, SUSE, ContainerRuntime, Environment, TrustStore
from gpu_provision.hosts.operations.runtime import Proxy, environment_change, start_change, start_import
from gpu_provision.hosts.scripts import HOME, WORK

CONTAINERD = """
case "$*" in
  'config default') echo 'version = 4' ;;
  *) ! grep -h rejected "$2" >&2 ;;
esac
"""
PROGRAMS = {
    "containerd": CONTAINERD,
    "ctr": """
echo "TYPE ID PLATFORMS STATUS"
if [ -e "$STATE/down" ]; then echo 'ctr: connection refused' >&2; exit 1; fi
if [ -e "$STATE/broken" ]; then state=error; else state=ok; fi
echo "io.containerd.grpc.v1     cri     linux/amd64     $state"
""",
    # what breaks with some text in its files is broken: its CRI has failed, or it is down: it does not answer at all
    "systemctl": """
echo "$*" >>"$STATE/calls"
[ "$1" = restart ] || exit 0
if grep -qsr "$BREAKS" "$STATE/etc"; then touch "$STATE/$AS"; else rm -f "$STATE/broken" "$STATE/down"; fi
""",
    "journalctl": """
[ -e "$STATE/broken" ] || exit 0
echo 'level=info msg="Start cri plugin with config {password: s3cret}"'
echo 'level=error msg="failed to load plugin cri"'
""",
    "update-ca-certificates": """
echo "update-ca-certificates: $(ls "$STATE/usr/local/share/ca-certificates" | wc -l)" >>"$STATE/calls"
if grep -qs REJECTED "$STATE"/usr/local/share/ca-certificates/*; then echo "no such certificate" >&2; exit 1; fi
""",
    "docker": 'case $1 in info) cat "$STATE/live-restore" ;; esac',
}
NO_SPACE = "for last; do :; done; echo half >\"$last\"; echo 'no space left' >&2; exit 1"
CONFIGS = sorted((Path(__file__).parent / "containerd_configs").glob("*.toml"))
PATTERN = "/etc/containerd/conf.d/*.toml"
RESTART, RESET = "restart containerd.service", "reset-failed containerd.service"
CHANGED = ScriptResult(outcome=ScriptOutcome.CHANGED)
PROXY = Proxy(https_proxy="http://me:s3cret@proxy:3128", no_proxy=".example.com")
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
READ_ENVIRONMENT = f"{scripts.assign()}{scripts.load('facts.sh')}read_environment"
OWN = ("/etc/gpu-provision", "/etc/systemd/system", "/usr/local/share/ca-cert", HOME)


@dataclass(frozen=True)
class Host:
    """A directory with programs that only act as those of a host, files, and what happened."""

    folder: Path
    runtime: ContainerRuntime

    @property
    def config(self) -> Path:
        return self.folder / "etc/config.toml"

    def program(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def here(self, text: str) -> str:
        for path in OWN:
            text = text.replace(path, f"{self.folder}{path}")
        text = text.replace(WORK, f"{self.folder}/work")
        return text.replace("/run/systemd/system", "/nonexistent").replace("/sys/fs/cgroup", "/nonexistent")

    def run(self, command: str, *, stdin: str = "", breaks: str = "nothing", broken_as: str = "broken") -> str:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        environment = {"PATH": path, "STATE": str(self.folder), "BREAKS": breaks, "AS": broken_as}
        here = self.here(command).replace("sleep 1", "sleep 0.1").replace("sleep 2", "sleep 0.1")
        done = subprocess.run(
            ["sh", "-c", here], input=stdin, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def ask(self) -> ScriptResult | None:
        return parse(self.run(background_script.poll_command(seconds=60)).splitlines())

    def add_import(self, **breaks: str) -> ScriptResult | None:
        self.run(start_import(self.runtime, PATTERN, 0), **breaks)
        return self.ask()

    def restart(self) -> ScriptResult | None:
        self.run(restart_runtime(self.runtime, patience=0))
        return self.ask()

    def set_environment(self, proxy: Proxy, *certificates: str, breaks: str = "nothing") -> ScriptResult | None:
        """Do what the host's own files need; raise if nothing is needed."""
        change = environment_change(self.record(), proxy, certificates)
        assert change.files
        command = start_change(change, 0)
        stdin = command.connector_arguments["_stdin"]
        assert isinstance(stdin, str)
        assert "s3cret" not in command.get_raw_value()
        lines = (line if line.startswith("|") else self.here(line) for line in stdin.splitlines(keepends=True))
        self.run(command.get_raw_value(), stdin="".join(lines), breaks=breaks)
        return self.ask()

    def record(self) -> HostFacts:
        """Return the host as our own fact sees it; paths are those of a real one."""
        said = self.run(READ_ENVIRONMENT).replace(str(self.folder), "")
        found = Environment.read(SectionOutput(line for line in said.splitlines() if not line.startswith("trust ")))
        return HostFacts(runtimes=(self.runtime,), environment=Environment(files=found.files, trust=DEBIAN))

    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def files(self) -> dict[str, tuple[int, str]]:
        paths = [path for name in ("etc", "usr") for path in (self.folder / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): (path.stat().st_mode & 0o777, path.read_text()) for path in paths}

    def left(self) -> set[str]:
        return {path.name for path in (self.folder / "work").iterdir()} - {"change.sh", "job", "pid", "result", "said"}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host with a containerd without a configuration, and a store of certificates."""
    for folder in ("bin", "etc", "usr/local/share/ca-certificates"):
        (tmp_path / folder).mkdir(parents=True)
    config, binary = f"{tmp_path}/etc/config.toml", f"{tmp_path}/bin/containerd"
    runtime = ContainerRuntime(kind="containerd", running=True, binary=binary, config=config, socket="/run/c.sock")
    host = Host(tmp_path, runtime)
    for name, text in PROGRAMS.items():
        host.program(name, text)
    return host


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_nothing_but_the_imports_changes(host: Host, file: Path) -> None:
    """For configurations of every schema: the same values, the new import last, one line of text."""
    old = file.read_text()
    host.config.write_text(old)
    host.config.chmod(0o640)
    assert host.add_import() == CHANGED
    new = host.config.read_text()
    was, now = tomllib.loads(old), tomllib.loads(new)
    assert now == {**was, "imports": [*was.get("imports", ()), PATTERN]}
    changed = [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line.startswith("+")]
    assert len(changed) == 1
    assert host.files().keys() == {"etc/config.toml"}
    assert host.config.stat().st_mode & 0o777 == 0o640
    assert host.calls() == [RESTART]


def test_missing_configuration_gets_the_schema_of_containerd(host: Host) -> None:
    """A drop-in of a newer schema than its root's keeps containerd from starting."""
    assert host.add_import() == CHANGED
    assert tomllib.loads(host.config.read_text()) == {"version": 4, "imports": [PATTERN]}
    assert host.files().keys() == {"etc/config.toml"}


CRI = 'level=error msg="failed to load plugin cri"'
BACK = [RESTART, RESET, RESTART]
IMPORTS_THAT_FAIL: dict[str, tuple[dict[str, Any], str, str, list[str]]] = {
    "containerd answers, and its CRI does not": ({"breaks": "conf.d"}, "restored", CRI, BACK),
    "it does not answer": ({"breaks": "conf.d", "broken_as": "down"}, "restored", "", BACK),
    "it stays away": ({"breaks": "version", "broken_as": "down"}, "dead", "", BACK),
    # a fault from before is not blamed on the change
    "it was down before": ({"state": "down"}, "down", "connection refused", []),
    "its CRI had failed before": ({"state": "broken"}, "down", "error", []),
    "it rejects what it has": ({"config": "rejected = 2\n"}, "rejected-old", "rejected = 2", []),
    # files that were not imported before may be broken
    "it rejects the new configuration": (
        {"containerd": CONTAINERD.replace("rejected", "conf.d")}, "rejected-new", f'imports = ["{PATTERN}"]', []),
    "a full disk leaves half a copy": ({"cp": NO_SPACE}, "not-kept", "no space left", []),
}  # fmt: skip


@pytest.mark.parametrize(("given", "outcome", "seen", "calls"), IMPORTS_THAT_FAIL.values(), ids=IMPORTS_THAT_FAIL)
def test_old_configuration_stays_or_returns(
    host: Host, given: dict[str, str], outcome: str, seen: str, calls: list[str]
) -> None:
    config = given.get("config", "version = 2\n")
    host.config.write_text(config)
    if state := given.get("state"):
        (host.folder / state).touch()
    for name in given.keys() & {"containerd", "cp"}:
        host.program(name, given[name])
    breaks = {name: given[name] for name in ("breaks", "broken_as") if name in given}
    result = host.add_import(**breaks)
    assert result
    assert (result.outcome.value, seen in result.evidence) == (outcome, True)
    assert "s3cret" not in result.evidence
    assert host.config.read_text() == config
    assert host.files().keys() == {"etc/config.toml"}
    assert host.calls() == calls


def test_a_second_start_waits_for_the_first(host: Host) -> None:
    """Two scripts at once would take each other's change back."""
    host.config.write_text("version = 2\n")
    again = start_import(host.runtime, PATTERN, 0)
    assert host.add_import() == CHANGED
    once = host.calls()
    work = host.folder / "work"
    (work / "result").unlink()
    with subprocess.Popen(["sleep", "60"]) as first:
        (work / "pid").write_text(str(first.pid))
        host.run(again)
        (work / "result").write_text("restored\nby the first\n")
        assert host.ask() == ScriptResult(outcome=ScriptOutcome.RESTORED, evidence="by the first")
        first.kill()
    assert host.calls() == once


def test_another_script_begins_after_the_first(host: Host) -> None:
    """The result of one is not taken for that of the other."""
    host.config.write_text("version = 2\n")
    assert host.add_import() == CHANGED
    work = host.folder / "work"
    (work / "result").unlink()
    with subprocess.Popen(["sleep", "60"]) as first:
        (work / "pid").write_text(str(first.pid))
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(host.restart)
            (work / "result").write_text("restored\nby the first\n")
            assert asked.result() == CHANGED
        first.kill()


def test_a_restart_that_does_not_bring_the_runtime_back_says_why(host: Host) -> None:
    host.program("systemctl", 'touch "$STATE/broken"')
    assert host.restart() == ScriptResult(outcome=ScriptOutcome.DEAD, evidence=CRI)


def test_a_killed_script_is_reported(host: Host) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    work = host.folder / "work"
    work.mkdir()
    (work / "pid").write_text(str(ended.pid))
    assert host.ask() == ScriptResult(outcome=ScriptOutcome.GONE)


ENV = "etc/gpu-provision/runtime-proxy.env"
DROP_IN = "etc/systemd/system/containerd.service.d/90-gpu-provision-proxy.conf"


def test_proxy_and_certificates_are_set_once_and_go_again(host: Host) -> None:
    """The credentials for root alone; systemd and the store hear of it before the one restart."""
    before = host.files()
    assert host.set_environment(PROXY, CERTIFICATE) == CHANGED
    files = host.files()
    assert files[ENV] == (0o600, 'HTTPS_PROXY="http://me:s3cret@proxy:3128"\nNO_PROXY=".example.com"\n')
    assert files[DROP_IN][0] == 0o644
    assert [content for mode, content in files.values() if mode == 0o644 and "BEGIN" in content] == [CERTIFICATE]
    assert host.calls() == ["daemon-reload", "update-ca-certificates: 1", RESTART]
    assert host.left() == set()
    assert not environment_change(host.record(), PROXY, (CERTIFICATE,)).files
    assert (host.folder / DROP_IN).parent.stat().st_mode & 0o777 == 0o755
    assert host.set_environment(Proxy()) == CHANGED
    assert host.files() == before
    assert host.calls()[3:] == ["daemon-reload", "update-ca-certificates: 0", RESTART]


@pytest.mark.parametrize(("breaks", "outcome"), [("s3cret", "restored"), ("NO_PROXY", "dead")])
def test_files_are_restored_if_the_runtime_does_not_come_back(host: Host, breaks: str, outcome: str) -> None:
    """All of them, with mode and content; what was there before, and what was not."""
    assert host.set_environment(replace(PROXY, https_proxy="http://other:1")) == CHANGED
    before = host.files()
    result = host.set_environment(PROXY, CERTIFICATE, breaks=breaks)
    assert result
    assert (result.outcome.value, "s3cret" in result.evidence) == (outcome, False)
    assert host.files() == before
    assert host.calls()[-3:] == ["update-ca-certificates: 0", RESET, RESTART]
    assert host.left() == set()


@pytest.mark.parametrize(
    ("program", "certificate", "outcome", "seen"),
    [
        ("", CERTIFICATE.replace("MIIB", "REJECTED"), "rejected-new", "no such certificate"),
        ("cp", CERTIFICATE, "not-kept", "no space left"),
        ("down", CERTIFICATE, "down", "connection refused"),
    ],
)
def test_a_change_that_cannot_be_made_restarts_nothing(
    host: Host, program: str, certificate: str, outcome: str, seen: str
) -> None:
    if program == "down":
        (host.folder / program).touch()
    elif program:
        host.program(program, "echo 'no space left' >&2; exit 1")
    before = host.files()
    result = host.set_environment(PROXY, certificate)
    assert result
    assert (result.outcome.value, seen in result.evidence) == (outcome, True)
    assert host.files() == before
    assert RESTART not in host.calls()


@pytest.mark.parametrize(("live", "outcome"), [("false", ScriptOutcome.NO_TOOL), ("true", ScriptOutcome.CHANGED)])
def test_docker_is_restarted_only_if_its_containers_go_on(host: Host, live: str, outcome: ScriptOutcome) -> None:
    """Without live-restore they would all end."""
    (host.folder / "live-restore").write_text(live)
    docker = replace(host, runtime=ContainerRuntime(kind="docker", running=True, socket="/run/docker.sock"))
    result = docker.set_environment(PROXY)
    assert result
    assert result.outcome is outcome
    assert ("restart docker.service" in host.calls()) == (outcome is ScriptOutcome.CHANGED)


@pytest.mark.parametrize(
    ("programs", "folders", "store"),
    [
        (["update-ca-trust"], ["/etc/pki/ca-trust/source/anchors"], RHEL),
        (["update-ca-certificates"], ["/etc/pki/trust/anchors"], SUSE),
        (["update-ca-certificates"], [], DEBIAN),
        ([], [], None),
    ],
)
def test_the_store_of_each_system_is_found(
    tmp_path: Path, programs: list[str], folders: list[str], store: TrustStore | None
) -> None:
    """By its program and, as two have the same name, by its directory."""
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for folder in folders:
        (tmp_path / folder[1:]).mkdir(parents=True)
    script = READ_ENVIRONMENT.replace("[ -d /", f"[ -d {tmp_path}/")
    said = subprocess.run(
        ["/bin/sh", "-c", script], env={"PATH": str(tmp_path)}, check=True, capture_output=True, text=True
    )
    assert Environment.read(SectionOutput(said.stdout.splitlines())).trust == store
