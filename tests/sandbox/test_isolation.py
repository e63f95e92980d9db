"""What happens where a machine cannot isolate simulated hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision.sandbox import isolation


@pytest.fixture(autouse=True)
def untried() -> None:
    isolation._working.cache_clear()


def test_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without util-linux."""
    monkeypatch.setattr(isolation, "_which", lambda tool: None if tool == "unshare" else tool)
    assert isolation.problem() == "this machine has no unshare (util-linux, coreutils)"
    isolation._working.cache_clear()


def test_refusal_of_the_system_is_one_line_with_its_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As seccomp, AppArmor or a sysctl would refuse."""
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    problem = isolation.problem()
    assert "make namespaces (unshare: unshare failed: Operation not permitted)" in problem
    assert len(problem.splitlines()) == 1
    isolation._working.cache_clear()


def test_odd_characters_of_a_path_reach_fstab_escaped() -> None:
    """A state directory may have any name."""
    assert isolation._field(Path("/a b\tc\\d")) == r"/a\040b\011c\134d"
