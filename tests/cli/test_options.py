"""Which file a command reads when the user names one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_provision.cli.options import DEFAULT, find_inventory
from gpu_provision.model.codes import ExitCode
from tests.cli.harness import REPOSITORY, Run


def test_names_and_a_tilde_stand_for_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_inventory("~/prod.yaml") == tmp_path / "prod.yaml"
    assert [find_inventory(name) for name in ("sandbox", "inventories/sandbox.py")] == [DEFAULT, DEFAULT]
    assert find_inventory("~no-such-user/prod.yaml") == Path("~no-such-user/prod.yaml")


def test_a_forbidden_folder_is_a_missing_file(run: Run) -> None:
    """Such as one in a folder of root; a name that is too long is as bad, and root can try that."""
    hopeless = "x" * 300
    assert run("validate", "-i", hopeless).code == ExitCode.INVALID_INVENTORY
    assert run("validate", "-i", f"{hopeless}.py").code == ExitCode.USAGE
    assert run("adopt", "--inventory-out", hopeless).code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pl", {"plan"}),
        ("history s", {"show"}),
        ("plan --off", {"--offline"}),
        ("plan -i p", {"prod"}),
        ("plan --target driver_", {"driver_validation"}),
        ("plan --limit t4-1,h100", {"t4-1,h100-1"}),
        ("explain gp50", {f"GP50{last}" for last in (0, 1, 2, 3, 4, 5, 6, 8, 9)}),
        ("plan -i missing --target d", set()),
        ("import --release 26.7", {"26.7.0"}),
        ("releases 26.7", {"26.7.0"}),
        ("releases 26.7.0 25.10", {"25.10.0", "25.10.1"}),
        ("rel", {"releases"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(run: Run, words: str, expected: set[str]) -> None:
    """By the script of ``gpu-provision completion``, which asks the command itself."""
    assert all("_GPU_PROVISION_COMPLETE" in run("completion", shell).out for shell in ("bash", "zsh"))
    environment = {
        **os.environ,
        "_GPU_PROVISION_COMPLETE": "bash_complete",
        "COMP_WORDS": f"gpu-provision {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    program = "from gpu_provision.cli import main; main([])"
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert {line.removeprefix("plain,") for line in ran.stdout.splitlines()} - {"file,", ""} == expected
