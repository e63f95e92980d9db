"""Local files are replaced as a whole, and nothing that another user has planted is followed or used."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision import files

KILLED_AFTER_TEN_BYTES = """
import resource, signal, sys
from pathlib import Path
from gpu_provision import files
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
files.write_atomic(Path(sys.argv[1]), "x" * 1000)
"""


@pytest.fixture(params=[0o022, 0o000, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_has_0600_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """Also one that replaces a file that everyone could read."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    path.chmod(0o666)
    files.write_atomic(path, "new", private=True)
    assert (mode(path), path.read_text(), umask) == (0o600, "new", umask)


def test_any_other_file_has_what_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    files.write_atomic(tmp_path / "page.html", "new")
    assert mode(tmp_path / "page.html") == 0o666 & ~umask


def test_a_draft_that_exists_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the random name be guessed after all: a symlink of it, even one that leads nowhere, is an error."""
    monkeypatch.setattr(os, "urandom", bytes)
    draft = tmp_path / f".plan.json.{bytes(8).hex()}"
    draft.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        files.write_atomic(tmp_path / "plan.json", "new")
    assert list(tmp_path.iterdir()) == [draft]


def test_the_file_behind_a_symlink_is_replaced(tmp_path: Path) -> None:
    """The user named the link, so the link stays, as with a shell's ``>``."""
    behind, link = tmp_path / "behind" / "plan.json", tmp_path / "latest.json"
    behind.parent.mkdir()
    behind.write_text("old")
    link.symlink_to(behind)
    files.write_atomic(link, "new")
    assert (link.readlink(), behind.read_text()) == (behind, "new")
    assert list(behind.parent.iterdir()) == [behind]


def test_a_process_killed_in_a_write_leaves_the_old_file(tmp_path: Path) -> None:
    """The kernel kills it for the size of the file, after the first ten bytes."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    ended = subprocess.run([sys.executable, "-c", KILLED_AFTER_TEN_BYTES, path], check=False)
    assert (ended.returncode, path.read_text()) == (-signal.SIGXFSZ, "old")
    drafts = [each for each in tmp_path.iterdir() if each != path]
    assert [each.read_text() for each in drafts] == ["x" * 10]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_error_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fails(*_: object) -> None:
        raise error

    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(error):
        files.write_atomic(path, "new")
    assert (list(tmp_path.iterdir()), path.read_text()) == ([path], "old")
