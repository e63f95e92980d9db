"""How a host changes its containerd's imports: the script, with programs that only act as containerd's do."""

from __future__ import annotations

import difflib
import os
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_provision.hosts import background_script
from gpu_provision.hosts.background_script import ScriptOutcome, ScriptResult, parse, restart_runtime
from gpu_provision.hosts.facts.runtime import ContainerRuntime
from gpu_provision.hosts.operations.runtime_imports import start
from gpu_provision.hosts.scripts import WORK

CONFIGS = sorted((Path(__file__).parent / "containerd_configs").glob("*.toml"))
KEPT = "/var/lib/gpu-provision"
PATTERN = "/etc/containerd/conf.d/*.toml"
CONTAINERD = """#!/bin/sh
case "$*" in
  'config default') echo 'version = 4' ;;
  *) ! grep -h rejected "$2" >&2 ;;
esac
"""
CTR = """#!/bin/sh
echo "TYPE ID PLATFORMS STATUS"
if [ -e "$STATE/down" ]; then echo 'ctr: connection refused' >&2; exit 1; fi
if [ -e "$STATE/broken" ]; then state=error; else state=ok; fi
echo "io.containerd.grpc.v1     cri     linux/amd64     $state"
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$STATE/systemctl"
[ "$1" = restart ] || exit 0
if grep -q "$BREAKS" "$STATE/etc/config.toml"; then touch "$STATE/$AS"; else rm -f "$STATE/broken" "$STATE/down"; fi
"""
JOURNALCTL = """#!/bin/sh
[ -e "$STATE/broken" ] || exit 0
echo 'level=info msg="Start cri plugin with config {password: s3cret}"'
echo 'level=error msg="failed to load plugin cri"'
"""


@dataclass(frozen=True)
class Machine:
    """A directory with programs, a configuration and what happened."""

    folder: Path

    @property
    def config(self) -> Path:
        """The root configuration."""
        return self.folder / "etc/config.toml"

    def change(self, *, breaks: str = "nothing", broken_as: str = "broken") -> ScriptResult | None:
        """Run the script to its end.

        Args:
            breaks: What a configuration holds with which the runtime does not work.
            broken_as: ``broken`` for a CRI that failed, ``down`` for no answer at all.
        """
        environment = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "STATE": str(self.folder),
            "BREAKS": breaks,
            "AS": broken_as,
        }
        return self._through(start(self.runtime, PATTERN, 0), environment)

    def restart(self) -> ScriptResult | None:
        """Run the script of teardown to its end."""
        environment = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "STATE": str(self.folder),
            "BREAKS": "nothing",
        }
        return self._through(restart_runtime(self.runtime, patience=0), environment)

    @property
    def runtime(self) -> ContainerRuntime:
        """The containerd."""
        return ContainerRuntime(
            kind="containerd", binary=f"{self.folder}/bin/containerd", config=str(self.config), socket="/run/c.sock"
        )

    def _through(self, start: str, environment: dict[str, str]) -> ScriptResult | None:
        self.run(start, environment)
        return self.ask()

    def ask(self) -> ScriptResult | None:
        """Return the result, once it is there."""
        return parse(self.run(background_script.poll_command(seconds=60), dict(os.environ)).splitlines())

    def run(self, command: str, environment: dict[str, str]) -> str:
        """Run a command in this directory instead of the system's."""
        here = command.replace(WORK, f"{self.folder}/work").replace(KEPT, f"{self.folder}/kept")
        here = here.replace("sleep 1", "sleep 0.1").replace("sleep 2", "sleep 0.1")
        here = here.replace("/run/systemd/system", "/nonexistent").replace("/sys/fs/cgroup", "/nonexistent")
        done = subprocess.run(["sh", "-c", here], env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    def happened(self) -> list[str]:
        """Return what systemctl was asked."""
        log = self.folder / "systemctl"
        return log.read_text().splitlines() if log.exists() else []

    def left(self) -> list[str]:
        """Return the files beside the configuration."""
        return sorted(path.name for path in self.config.parent.iterdir())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without a configuration."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "etc").mkdir()
    for name, text in {"containerd": CONTAINERD, "ctr": CTR, "systemctl": SYSTEMCTL, "journalctl": JOURNALCTL}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return Machine(tmp_path)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_nothing_but_the_imports_changes(machine: Machine, file: Path) -> None:
    """For configurations of every schema: the same values, the new import last, one line of text."""
    old = file.read_text()
    machine.config.write_text(old)
    machine.config.chmod(0o640)
    assert machine.change() == ScriptResult(outcome=ScriptOutcome.CHANGED)
    new = machine.config.read_text()
    was, now = tomllib.loads(old), tomllib.loads(new)
    assert now == {**was, "imports": [*was.get("imports", ()), PATTERN]}
    changed = [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line.startswith("+")]
    assert len(changed) == 1
    assert machine.config.stat().st_mode & 0o777 == 0o640
    assert machine.left() == ["config.toml"]
    assert machine.happened() == ["restart containerd.service"]


def test_missing_configuration_gets_the_schema_of_containerd(machine: Machine) -> None:
    """A drop-in of a newer schema than its root's keeps containerd from starting."""
    assert machine.change() == ScriptResult(outcome=ScriptOutcome.CHANGED)
    assert tomllib.loads(machine.config.read_text()) == {"version": 4, "imports": [PATTERN]}
    assert machine.left() == ["config.toml"]


@pytest.mark.parametrize("broken_as", ["broken", "down"])
def test_old_configuration_returns_if_the_runtime_does_not(machine: Machine, broken_as: str) -> None:
    """Also where containerd itself answers, and its CRI does not."""
    machine.config.write_text("version = 2\n")
    result = machine.change(breaks="conf.d", broken_as=broken_as)
    assert result
    assert result.outcome is ScriptOutcome.RESTORED
    assert machine.config.read_text() == "version = 2\n"
    assert machine.left() == ["config.toml"]
    restart = "restart containerd.service"
    assert machine.happened() == [restart, "reset-failed containerd.service", restart]


def test_the_evidence_is_an_error_and_never_the_configuration(machine: Machine) -> None:
    """At its start, containerd logs its configuration when it starts."""
    machine.config.write_text("version = 2\n")
    result = machine.change(breaks="conf.d")
    assert result
    assert result.evidence == 'level=error msg="failed to load plugin cri"'


def test_a_configuration_that_was_not_there_is_gone_again(machine: Machine) -> None:
    """What was new is taken away."""
    result = machine.change(breaks="conf.d")
    assert result
    assert result.outcome is ScriptOutcome.RESTORED
    assert machine.left() == []


def test_a_runtime_that_stays_away_is_told_of(machine: Machine) -> None:
    """The old configuration is back all the same."""
    machine.config.write_text("version = 2\n")
    result = machine.change(breaks="version", broken_as="down")
    assert result
    assert result.outcome is ScriptOutcome.DEAD
    assert machine.config.read_text() == "version = 2\n"


@pytest.mark.parametrize(
    ("config", "file", "outcome"),
    [
        ("version = 2\n", "down", ScriptOutcome.DOWN),
        ("version = 2\n", "broken", ScriptOutcome.DOWN),
        ("rejected = 2\n", "unused", ScriptOutcome.REJECTED_OLD),
    ],
)
def test_runtime_that_would_not_survive_is_not_restarted(
    machine: Machine, config: str, file: str, outcome: ScriptOutcome
) -> None:
    """A fault from before is not blamed on the change."""
    machine.config.write_text(config)
    (machine.folder / file).touch()
    result = machine.change()
    assert result
    assert result.outcome is outcome
    assert result.evidence
    assert machine.config.read_text() == config
    assert machine.happened() == []


def test_a_result_that_containerd_rejects_is_not_put_in_place(machine: Machine) -> None:
    """Files that were not imported before may be broken."""
    containerd = machine.folder / "bin/containerd"
    containerd.write_text(CONTAINERD.replace("rejected", "conf.d"))
    machine.config.write_text("version = 2\n")
    result = machine.change()
    assert result == ScriptResult(outcome=ScriptOutcome.REJECTED_NEW, evidence=f'imports = ["{PATTERN}"]')
    assert machine.left() == ["config.toml"]
    assert machine.happened() == []


def test_a_copy_that_cannot_be_made_changes_nothing(machine: Machine) -> None:
    """A full disk must not leave half a configuration, nor half of what to go back to."""
    machine.config.write_text("version = 2\n")
    copy = machine.folder / "bin/cp"
    copy.write_text("#!/bin/sh\nfor last; do :; done\necho half >\"$last\"\necho 'no space left' >&2\nexit 1\n")
    copy.chmod(0o755)
    assert machine.change() == ScriptResult(outcome=ScriptOutcome.NOT_KEPT, evidence="no space left")
    assert machine.config.read_text() == "version = 2\n"
    assert machine.left() == ["config.toml"]
    assert machine.happened() == []


def test_a_second_start_waits_for_the_first(machine: Machine) -> None:
    """Two scripts at once would take each other's change back."""
    machine.config.write_text("version = 2\n")
    again = start(machine.runtime, PATTERN, 0)
    assert machine.change() == ScriptResult(outcome=ScriptOutcome.CHANGED)
    once = machine.happened()
    work = machine.folder / "work"
    (work / "result").unlink()
    with subprocess.Popen(["sleep", "60"]) as first:
        (work / "pid").write_text(str(first.pid))
        machine.run(again, dict(os.environ))
        (work / "result").write_text("restored\nby the first\n")
        assert machine.ask() == ScriptResult(outcome=ScriptOutcome.RESTORED, evidence="by the first")
        first.kill()
    assert machine.happened() == once


def test_another_script_begins_after_the_first(machine: Machine) -> None:
    """The result of one is not taken for that of the other."""
    machine.config.write_text("version = 2\n")
    assert machine.change() == ScriptResult(outcome=ScriptOutcome.CHANGED)
    work = machine.folder / "work"
    (work / "result").unlink()
    with subprocess.Popen(["sleep", "60"]) as first:
        (work / "pid").write_text(str(first.pid))
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(machine.restart)
            (work / "result").write_text("restored\nby the first\n")
            assert asked.result() == ScriptResult(outcome=ScriptOutcome.CHANGED)
        first.kill()


def test_a_restart_that_does_not_bring_the_runtime_back_says_why(machine: Machine) -> None:
    """Teardown has nothing to go back to."""
    (machine.folder / "bin/systemctl").write_text('#!/bin/sh\ntouch "$STATE/broken"\n')
    result = machine.restart()
    assert result == ScriptResult(outcome=ScriptOutcome.DEAD, evidence='level=error msg="failed to load plugin cri"')


def test_a_script_that_was_killed_is_told_of(machine: Machine) -> None:
    """A result that does not come ends the wait."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    work = machine.folder / "work"
    work.mkdir()
    (work / "pid").write_text(str(ended.pid))
    asked = background_script.poll_command(seconds=60).replace(WORK, str(work))
    said = subprocess.run(["sh", "-c", asked], check=True, capture_output=True, text=True).stdout
    assert parse(said.splitlines()) == ScriptResult(outcome=ScriptOutcome.GONE)


@pytest.mark.parametrize("lines", [[], [""], ["Connection closed"]])
def test_no_answer_is_none(lines: list[str]) -> None:
    """The next question uses a new connection."""
    assert parse(lines) is None
