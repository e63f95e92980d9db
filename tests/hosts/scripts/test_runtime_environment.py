"""How a host changes what its container runtime is started with: the script, with programs that only act as theirs."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.hosts import scripts
from gpu_provision.hosts.background_script import ScriptOutcome, ScriptResult
from gpu_provision.hosts.facts import SectionOutput
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.runtime import DEBIAN, RHEL, SUSE, ContainerRuntime, Environment, TrustStore
from gpu_provision.hosts.operations.runtime import Proxy, environment_change, start_change
from tests.hosts.scripts.machine import Machine

READ_ENVIRONMENT = f"{scripts.assign()}{scripts.load('facts.sh')}read_environment"
PROXY = Proxy(https_proxy="http://me:s3cret@proxy:3128", no_proxy=".example.com")
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
UPDATE = """#!/bin/sh
echo "update-ca-certificates: $(ls "$STATE/usr/local/share/ca-certificates" | wc -l)" >>"$STATE/calls"
if grep -qs REJECTED "$STATE"/usr/local/share/ca-certificates/*; then echo "no such certificate" >&2; exit 1; fi
"""
DOCKER = """#!/bin/sh
case $1 in info) cat "$STATE/live-restore" ;; esac
"""


class Host(Machine):
    """A machine whose runtime gets proxies and certificates."""

    def change(self, proxy: Proxy, *certificates: str, breaks: str = "nothing") -> ScriptResult | None:
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

    def record(self) -> HostRecord:
        """Return the host as our own fact sees it; paths are those of a real one."""
        said = self.run(READ_ENVIRONMENT).replace(str(self.folder), "")
        lines = [line for line in said.splitlines() if not line.startswith("trust ")]
        found = Environment.read(SectionOutput(lines))
        return HostRecord(runtimes=(self.runtime,), environment=Environment(files=found.files, trust=DEBIAN))

    def files(self) -> dict[str, tuple[int, str]]:
        """Return mode and content of every file of the system."""
        paths = [path for name in ("etc", "usr") for path in (self.folder / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): (path.stat().st_mode & 0o777, path.read_text()) for path in paths}

    def left(self) -> set[str]:
        """Return what is left in the script's own directory."""
        return {path.name for path in (self.folder / "work").iterdir()} - {"change.sh", "job", "pid", "result", "said"}


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    """Return a machine with a containerd and a store of certificates."""
    (tmp_path / "usr/local/share/ca-certificates").mkdir(parents=True)
    programs = {"update-ca-certificates": UPDATE, "docker": DOCKER}
    return Host.make(tmp_path, "/etc/containerd/config.toml", **programs)


ENV = "etc/gpu-provision/runtime-proxy.env"
DROP_IN = "etc/systemd/system/containerd.service.d/90-gpu-provision-proxy.conf"


def test_files_are_made_and_the_runtime_is_restarted_once(machine: Host) -> None:
    assert machine.change(PROXY, CERTIFICATE) == ScriptResult(outcome=ScriptOutcome.CHANGED)
    files = machine.files()
    assert files[ENV] == (0o600, 'HTTPS_PROXY="http://me:s3cret@proxy:3128"\nNO_PROXY=".example.com"\n')
    assert files[DROP_IN][0] == 0o644
    assert [content for mode, content in files.values() if mode == 0o644 and "BEGIN" in content] == [CERTIFICATE]
    assert machine.calls() == ["daemon-reload", "update-ca-certificates: 1", "restart containerd.service"]
    assert machine.left() == set()
    assert not environment_change(machine.record(), PROXY, (CERTIFICATE,)).files
    assert (machine.folder / DROP_IN).parent.stat().st_mode & 0o777 == 0o755


def test_what_is_no_longer_declared_goes(machine: Host) -> None:
    before = machine.files()
    machine.change(PROXY, CERTIFICATE)
    (machine.folder / "calls").unlink()
    assert machine.change(Proxy()) == ScriptResult(outcome=ScriptOutcome.CHANGED)
    assert machine.files() == before
    assert machine.calls() == ["daemon-reload", "update-ca-certificates: 0", "restart containerd.service"]


@pytest.mark.parametrize(("breaks", "outcome"), [("s3cret", ScriptOutcome.RESTORED), ("NO_PROXY", ScriptOutcome.DEAD)])
def test_files_are_restored_if_the_runtime_does_not_come_back(
    machine: Host, breaks: str, outcome: ScriptOutcome
) -> None:
    """All of them, with mode and content; what was there before, and what was not."""
    first = replace(PROXY, https_proxy="http://other:1")
    assert machine.change(first) == ScriptResult(outcome=ScriptOutcome.CHANGED)
    before = machine.files()
    result = machine.change(PROXY, CERTIFICATE, breaks=breaks)
    assert result
    assert result.outcome is outcome
    assert "s3cret" not in result.evidence
    assert machine.files() == before
    assert machine.calls()[-3:] == [
        "update-ca-certificates: 0",
        "reset-failed containerd.service",
        "restart containerd.service",
    ]
    assert machine.left() == set()


def test_rejected_certificates_are_removed_without_a_restart(machine: Host) -> None:
    before = machine.files()
    result = machine.change(PROXY, CERTIFICATE.replace("MIIB", "REJECTED"))
    assert result == ScriptResult(outcome=ScriptOutcome.REJECTED_NEW, evidence="no such certificate")
    assert machine.files() == before
    assert "restart containerd.service" not in machine.calls()


def test_a_runtime_that_is_down_already_is_not_touched(machine: Host) -> None:
    (machine.folder / "down").touch()
    before = machine.files()
    result = machine.change(PROXY)
    assert result
    assert result.outcome is ScriptOutcome.DOWN
    assert (machine.files(), machine.calls()) == (before, [])


def test_a_copy_that_cannot_be_made_changes_nothing(machine: Host) -> None:
    machine.program("cp", "#!/bin/sh\necho 'no space left' >&2\nexit 1\n")
    before = machine.files()
    assert machine.change(PROXY) == ScriptResult(outcome=ScriptOutcome.NOT_KEPT, evidence="no space left")
    assert machine.files() == before
    assert machine.calls() == []


@pytest.mark.parametrize(("live", "outcome"), [("false", ScriptOutcome.NO_TOOL), ("true", ScriptOutcome.CHANGED)])
def test_docker_is_restarted_only_if_its_containers_go_on(machine: Host, live: str, outcome: ScriptOutcome) -> None:
    """Without live-restore they would all end."""
    (machine.folder / "live-restore").write_text(live)
    docker = replace(machine, runtime=ContainerRuntime(kind="docker", running=True, socket="/run/docker.sock"))
    result = docker.change(PROXY)
    assert result
    assert result.outcome is outcome
    assert ("restart docker.service" in machine.calls()) == (outcome is ScriptOutcome.CHANGED)


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
