"""What it takes to run hosts without a kernel of their own."""

from __future__ import annotations

import pytest

from tests.real.binaries import CACHE_VARIABLE
from tests.real.hosts import rootfs


def test_only_root_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said why, instead of failing."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert rootfs.missing().startswith("only root can run them")


def test_programs_that_are_missing_are_named_with_the_command_that_installs_them(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that one kind of host needs besides, too; the builder as long as nothing is built."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    there = {"ssh", "unshare", "mount", "setpriv", "ssh-keygen"}
    monkeypatch.setattr("shutil.which", lambda program: program if program in there else None)
    missing = rootfs.missing(**{"systemd-nspawn": "systemd-container"})
    assert missing == "not installed: apt-get install --no-install-recommends systemd-container mmdebstrap"


def test_a_machine_that_forbids_namespaces_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in most containers: the programs are there, and root is not allowed."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr(rootfs, "ISOLATED", ("sh", "-c", "echo not permitted >&2; exit 1"))
    assert rootfs.missing() == "this machine does not let root make them: not permitted"
