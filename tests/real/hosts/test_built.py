"""What is built once is built again when its recipe changes: an old image would pass tests that a new one fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.real.binaries import CACHE_VARIABLE
from tests.real.hosts.built import Recipe


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def recipe(script: str, text: str = "") -> Recipe:
    return Recipe("image", ("sh", "-c", f'cd "$0" && {script}'), ("disk",), (text,))


def test_recipe_that_changes_is_built_again(tmp_path: Path) -> None:
    """Another run may still use the old result; a result that was not used for days goes."""
    counted = recipe(f"touch disk && echo built >>{tmp_path}/log")
    first = counted.built()
    assert counted.built() == first
    assert (tmp_path / "log").read_text() == "built\n"
    changed = recipe("touch disk", "changed")
    assert changed.built() != first
    assert (first / "disk").exists()
    os.utime(first, (0, 0))
    assert (changed.built() / "disk").exists()
    assert not first.exists()


def test_failed_build_leaves_no_result() -> None:
    """The next run builds again."""
    with pytest.raises(subprocess.CalledProcessError):
        recipe("touch disk && exit 3").built()
    assert (recipe("touch disk").built() / "disk").exists()
