"""Where the image of the virtual machines is, and what it takes to build one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.real.binaries import CACHE_VARIABLE
from tests.real.hosts import image
from tests.real.hosts.built import Recipe


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a cache of its own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def _recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    script = tmp_path / "recipe.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setattr(image, "RECIPE", Recipe("image", script, image.RECIPE.makes))


MAKES = 'cd "$1" && touch disk.ext4 vmlinuz initrd.img key key.pub && echo built >>"$0.log"'


def test_one_build_serves_until_the_recipe_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have the old recipe and use its image still; one that nobody used for days goes: it is large."""
    _recipe(monkeypatch, tmp_path, MAKES)
    first = image.image()
    assert image.image() == first
    assert (tmp_path / "recipe.sh.log").read_text() == "built\n"
    _recipe(monkeypatch, tmp_path, f"{MAKES} # changed")
    second = image.image()
    assert second != first
    assert second.disk.exists()
    assert first.disk.exists()
    os.utime(first.folder, (0, 0))
    assert image.image() == second
    assert not first.folder.exists()


def test_a_build_that_fails_leaves_nothing_that_looks_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run builds again."""
    _recipe(monkeypatch, tmp_path, 'touch "$1/disk.ext4"; exit 3')
    with pytest.raises(subprocess.CalledProcessError):
        image.image()
    _recipe(monkeypatch, tmp_path, MAKES)
    assert image.image().key.exists()


def test_what_is_missing_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it at once."""
    monkeypatch.setattr("shutil.which", lambda program: None if program.startswith("qemu") else program)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert image.missing() == "not installed: apt-get install --no-install-recommends qemu-system-x86 qemu-utils"


def test_only_root_builds_and_anybody_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU itself needs no rights."""
    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "run make test-hosts as root once" in image.missing()
    _recipe(monkeypatch, tmp_path, MAKES)
    image.image()
    assert image.missing() == ""
