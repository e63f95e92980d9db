"""Which file a command reads when the user names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision.cli.options import find_inventory
from gpu_provision.model.findings import ExitCode
from tests.cli.harness import Run


def test_a_tilde_is_the_users_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_inventory("~/prod.yaml") == tmp_path / "prod.yaml"


def test_the_home_of_an_unknown_user_is_a_missing_file_and_no_crash() -> None:
    assert find_inventory("~no-such-user/prod.yaml") == Path("~no-such-user/prod.yaml")


def test_a_place_that_nobody_may_look_at_is_a_missing_file_and_no_crash(run: Run) -> None:
    """Such as one in a folder of root; a name that is too long is as bad, and root can try that."""
    hopeless = "x" * 300
    assert run("validate", "-i", hopeless).code == ExitCode.INVALID_INVENTORY
    assert run("validate", "-i", f"{hopeless}.py").code == ExitCode.USAGE
    assert run("adopt", "--inventory-out", hopeless).code == ExitCode.USAGE


def test_a_bare_name_is_a_file_of_inventories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventories").mkdir()
    (tmp_path / "inventories" / "mine.yaml").touch()
    assert find_inventory("mine") == Path("inventories/mine.yaml")
