"""How a host changes its containerd's imports: the script, with programs that only act as containerd's do."""

from __future__ import annotations

import difflib
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_provision.hosts.background_script import ScriptOutcome, ScriptResult, restart_runtime
from gpu_provision.hosts.operations.runtime import start_import
from tests.hosts.scripts.machine import CONTAINERD, Machine

CONFIGS = sorted((Path(__file__).parent / "containerd_configs").glob("*.toml"))
PATTERN = "/etc/containerd/conf.d/*.toml"
RESTART = "restart containerd.service"


class Host(Machine):
    """A machine whose containerd gets an import."""

    @property
    def config(self) -> Path:
        """The root configuration."""
        return self.folder / "etc/config.toml"

    def change(self, *, breaks: str = "nothing", broken_as: str = "broken") -> ScriptResult | None:
        """Run the script to its end."""
        self.run(start_import(self.runtime, PATTERN, 0), breaks=breaks, broken_as=broken_as)
        return self.ask()

    def restart(self) -> ScriptResult | None:
        """Run the script of teardown to its end."""
        self.run(restart_runtime(self.runtime, patience=0))
        return self.ask()

    def left(self) -> list[str]:
        """Return the files beside the configuration."""
        return sorted(path.name for path in self.config.parent.iterdir())


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    """Return a machine without a configuration."""
    return Host.make(tmp_path, str(tmp_path / "etc/config.toml"))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_nothing_but_the_imports_changes(machine: Host, file: Path) -> None:
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
    assert machine.calls() == [RESTART]


def test_missing_configuration_gets_the_schema_of_containerd(machine: Host) -> None:
    """A drop-in of a newer schema than its root's keeps containerd from starting."""
    assert machine.change() == ScriptResult(outcome=ScriptOutcome.CHANGED)
    assert tomllib.loads(machine.config.read_text()) == {"version": 4, "imports": [PATTERN]}
    assert machine.left() == ["config.toml"]


@pytest.mark.parametrize("broken_as", ["broken", "down"])
def test_old_configuration_returns_if_the_runtime_does_not(machine: Host, broken_as: str) -> None:
    """Also where containerd itself answers, and its CRI does not; its log may hold the configuration."""
    machine.config.write_text("version = 2\n")
    result = machine.change(breaks="conf.d", broken_as=broken_as)
    assert result
    assert result.outcome is ScriptOutcome.RESTORED
    assert (result.evidence == 'level=error msg="failed to load plugin cri"') is (broken_as == "broken")
    assert machine.config.read_text() == "version = 2\n"
    assert machine.left() == ["config.toml"]
    assert machine.calls() == [RESTART, "reset-failed containerd.service", RESTART]


def test_a_runtime_that_stays_away_is_reported(machine: Host) -> None:
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
    machine: Host, config: str, file: str, outcome: ScriptOutcome
) -> None:
    machine.config.write_text(config)
    (machine.folder / file).touch()
    result = machine.change()
    assert result
    assert result.outcome is outcome
    assert result.evidence
    assert machine.config.read_text() == config
    assert machine.calls() == []


def test_a_result_that_containerd_rejects_is_not_put_in_place(machine: Host) -> None:
    machine.program("containerd", CONTAINERD.replace("rejected", "conf.d"))
    machine.config.write_text("version = 2\n")
    result = machine.change()
    assert result == ScriptResult(outcome=ScriptOutcome.REJECTED_NEW, evidence=f'imports = ["{PATTERN}"]')
    assert machine.left() == ["config.toml"]
    assert machine.calls() == []


def test_a_copy_that_cannot_be_made_changes_nothing(machine: Host) -> None:
    """A full disk must not leave half a configuration, nor half of what to go back to."""
    machine.config.write_text("version = 2\n")
    machine.program("cp", "#!/bin/sh\nfor last; do :; done\necho half >\"$last\"\necho 'no space left' >&2\nexit 1\n")
    assert machine.change() == ScriptResult(outcome=ScriptOutcome.NOT_KEPT, evidence="no space left")
    assert machine.config.read_text() == "version = 2\n"
    assert machine.left() == ["config.toml"]
    assert machine.calls() == []


def test_a_second_start_waits_for_the_first(machine: Host) -> None:
    """Two scripts at once would take each other's change back."""
    machine.config.write_text("version = 2\n")
    again = start_import(machine.runtime, PATTERN, 0)
    assert machine.change() == ScriptResult(outcome=ScriptOutcome.CHANGED)
    once = machine.calls()
    work = machine.folder / "work"
    (work / "result").unlink()
    with subprocess.Popen(["sleep", "60"]) as first:
        (work / "pid").write_text(str(first.pid))
        machine.run(again)
        (work / "result").write_text("restored\nby the first\n")
        assert machine.ask() == ScriptResult(outcome=ScriptOutcome.RESTORED, evidence="by the first")
        first.kill()
    assert machine.calls() == once


def test_another_script_begins_after_the_first(machine: Host) -> None:
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


def test_a_restart_that_does_not_bring_the_runtime_back_says_why(machine: Host) -> None:
    machine.program("systemctl", '#!/bin/sh\ntouch "$STATE/broken"\n')
    result = machine.restart()
    assert result == ScriptResult(outcome=ScriptOutcome.DEAD, evidence='level=error msg="failed to load plugin cri"')


def test_a_killed_script_is_reported(machine: Host) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    work = machine.folder / "work"
    work.mkdir()
    (work / "pid").write_text(str(ended.pid))
    assert machine.ask() == ScriptResult(outcome=ScriptOutcome.GONE)
