"""The shell that changes files and restores them, under the shells that hosts have, in a scratch root."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_provision.hosts import scripts
from gpu_provision.hosts.facts import SectionOutput
from gpu_provision.hosts.facts.packages import Original, Originals
from gpu_provision.hosts.operations.backups import FileLines, restore, write_with_backup
from gpu_provision.hosts.scripts import HOME, ORIGINALS
from tests.hosts.fleet import SHELLS


class Scratch:
    """A directory that stands for the root of a host."""

    def __init__(self, root: Path, shell: list[str]) -> None:
        self.root, self.shell = root, shell
        for name in ("etc", "var/lib"):
            (root / name).mkdir(parents=True)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        moved = script.replace(HOME, str(self.root / HOME.lstrip("/")))
        return subprocess.run([*self.shell, "-c", moved], capture_output=True, text=True, check=False)

    def put(self, name: str, content: FileLines, *, mode: str = "") -> None:
        done = self.run(write_with_backup(str(self.root / name), content, mode=mode).get_raw_value())
        assert (done.returncode, done.stderr) == (0, "")

    def restore(self) -> None:
        done = self.run(restore().get_raw_value())
        assert (done.returncode, done.stderr) == (0, "")

    def known(self) -> Originals:
        lines = (
            self.run(f"{scripts.assign()}{scripts.load('facts.sh')}read_originals")
            .stdout.replace(f"{self.root}/", "")
            .splitlines()
        )
        return Originals.read(SectionOutput(lines))

    def tree(self) -> dict[str, object]:
        """Return everything that can be told of the files, but for the times of directories and parts of seconds."""
        return {str(path.relative_to(self.root)): _told(path) for path in self.root.rglob("*")}


def _told(path: Path) -> object:
    status = path.lstat()
    if path.is_symlink():
        return str(path.readlink())
    if path.is_dir():
        return (status.st_mode, status.st_uid)
    return (status.st_mode, status.st_uid, status.st_gid, int(status.st_mtime), path.read_bytes())


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def scratch(request: pytest.FixtureRequest, tmp_path: Path) -> Scratch:
    return Scratch(tmp_path, request.param)


def test_everything_comes_back_to_the_byte(scratch: Scratch) -> None:
    """A file with mode and odd bytes, one that was not there, deep new directories, a link, one that was removed."""
    (scratch.root / "etc/config.toml").write_bytes(b"no newline at the end \xff\0")
    (scratch.root / "etc/config.toml").chmod(0o640)
    (scratch.root / "etc/gone.conf").write_text("x\n")
    (scratch.root / "etc/link").symlink_to("config.toml")
    before = scratch.tree()
    scratch.put("etc/config.toml", ("version = 3", 'it\'s \\n "quoted" $HOME %s'))
    scratch.put("etc/deep/er/new.conf", ("new",))
    scratch.put("etc/gone.conf", None)
    scratch.put("etc/link", ("no link",))
    assert (scratch.root / "etc/config.toml").read_text() == 'version = 3\nit\'s \\n "quoted" $HOME %s\n'
    assert not (scratch.root / "etc/gone.conf").exists()
    assert (scratch.root / "etc/link").read_text() == "no link\n"
    scratch.restore()
    assert scratch.tree() == before


def test_first_original_is_kept_whatever_comes_later(scratch: Scratch) -> None:
    """Later runs, and removing a file in between, leave it alone; each path is listed once."""
    (scratch.root / "etc/a.conf").write_text("first\n")
    for content in (("second",), None, ("third",)):
        scratch.put("etc/a.conf", content)
        scratch.put("etc/b.conf", content)
    kept = scratch.known().kept
    assert kept == (Original("file", "etc/a.conf", differs=True), Original("absent", "etc/b.conf", differs=True))
    scratch.restore()
    assert (scratch.root / "etc/a.conf").read_text() == "first\n"
    assert not (scratch.root / "etc/b.conf").exists()


def test_mode_stays_unless_one_is_wanted(scratch: Scratch) -> None:
    """A new file is readable by all; one that is there keeps its mode; a wanted mode counts for both."""
    (scratch.root / "etc/own").write_text("x")
    (scratch.root / "etc/own").chmod(0o600)
    for name, mode in (("own", ""), ("new", ""), ("secret", "600")):
        scratch.put(f"etc/{name}", ("line",), mode=mode)
    modes = {name: (scratch.root / "etc" / name).stat().st_mode & 0o777 for name in ("own", "new", "secret")}
    assert modes == {"own": 0o600, "new": 0o644, "secret": 0o600}


def test_originals_are_for_root_alone(scratch: Scratch) -> None:
    """They may hold secrets."""
    scratch.put("etc/a", ("x",))
    store = scratch.root / ORIGINALS.lstrip("/")
    assert store.stat().st_mode & 0o077 == 0


def test_directory_that_others_use_stays(scratch: Scratch) -> None:
    scratch.put("etc/made/ours.conf", ("x",))
    (scratch.root / "etc/made/theirs.conf").write_text("y")
    scratch.restore()
    assert [path.name for path in (scratch.root / "etc/made").iterdir()] == ["theirs.conf"]


def test_original_that_cannot_be_kept_stops_the_change(scratch: Scratch) -> None:
    (scratch.root / "etc/a").write_text("first\n")
    (scratch.root / HOME.lstrip("/")).write_text("a file where the directory should be")
    done = scratch.run(write_with_backup(str(scratch.root / "etc/a"), ("second",)).get_raw_value())
    assert done.returncode != 0
    assert (scratch.root / "etc/a").read_text() == "first\n"


def test_failed_restore_keeps_the_originals(scratch: Scratch) -> None:
    """The others are restored, the originals stay for another try, and the command fails."""
    for name in ("etc/a", "etc/dir/b"):
        scratch.put(name, ("x",))
    (scratch.root / "etc/a").unlink()
    (scratch.root / "etc/a").mkdir()
    (scratch.root / "etc/a/full").touch()
    assert scratch.run(restore().get_raw_value()).returncode != 0
    assert not (scratch.root / "etc/dir").exists()
    assert scratch.known().present


def test_an_interrupted_backup_starts_again(scratch: Scratch) -> None:
    """Half an original that is not listed is no original."""
    (scratch.root / "etc/a").write_text("first\n")
    half = scratch.root / ORIGINALS.lstrip("/") / "files" / str(scratch.root / "etc/a").lstrip("/")
    half.parent.mkdir(parents=True)
    half.write_text("fir")
    scratch.put("etc/a", ("second",))
    scratch.restore()
    assert (scratch.root / "etc/a").read_text() == "first\n"


def test_fact_sees_what_differs(scratch: Scratch) -> None:
    for name in ("content", "mode", "same"):
        (scratch.root / "etc" / name).write_text("x\n")
        scratch.put(f"etc/{name}", ("x",))
    (scratch.root / "etc/content").write_text("y\n")
    (scratch.root / "etc/mode").chmod(0o600)
    assert {each.path: each.differs for each in scratch.known().kept} == {
        "etc/content": True,
        "etc/mode": True,
        "etc/same": False,
    }


def test_runs_at_the_same_time_lose_no_original(scratch: Scratch) -> None:
    """Two people, or a person and a scheduled run: every file ends whole, and every original is listed once."""
    names = [f"etc/{number}" for number in range(12)]
    twice = [write_with_backup(str(scratch.root / name), ("new", name)).get_raw_value() for name in names * 2]
    with ThreadPoolExecutor(len(twice)) as pool:
        ended = list(pool.map(scratch.run, twice))
    assert [(done.returncode, done.stderr) for done in ended] == [(0, "")] * len(twice)
    assert sorted(kept.path for kept in scratch.known().kept) == sorted(names)
    for name in names:
        assert (scratch.root / name).read_text() == f"new\n{name}\n"
