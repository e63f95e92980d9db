"""A file that is no inventory is answered with one clear finding, without reading more than needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_provision.inventory import check, document
from gpu_provision.model.findings import Finding


def only_finding(path: Path | str) -> Finding:
    (finding,) = check(path).all
    assert finding.where.startswith(str(path))
    assert finding.what
    return finding


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "prod.yaml")


def _folder_with_a_newline(folder: Path) -> None:
    (folder / "a\n  ProxyCommand b").mkdir()
    (folder / "a\n  ProxyCommand b" / "prod.yaml").write_text("name: prod\n")


PATHS = {
    "a typo": ("prod.yaml", "prdo.yaml", "GP101", "Did you mean {}/prod.yaml?"),
    "nothing like it": ("bin.yaml", "missing.yaml", "GP101", "Name an existing YAML file."),
    "no folder": ("", "inventory/prod.yaml", "GP101", "Look for the directory {}/inventory"),
    "below a file": ("prod.yaml", "prod.yaml/more.yaml", "GP101", ""),
    "a folder": ("prod.yaml", "", "GP102", "Name one of its files: {}/prod.yaml"),
    "pyinfra's": ("prod.py", "prod.py", "GP102", "Name the YAML file: {}/prod.yaml"),
    "a pipe": (_pipe, "prod.yaml", "GP102", "Name a YAML file."),
    "a newline": (_folder_with_a_newline, "a\n  ProxyCommand b/prod.yaml", "GP102", "Rename the file or directory."),
    "a zero byte": ("", "prod\0.yaml", "GP102", ""),  # raises ValueError and not OSError
    "an unknown user": ("", "~no-such-user/prod.yaml", "GP101", ""),
}


@pytest.mark.parametrize(("made", "path", "code", "fix"), PATHS.values(), ids=PATHS)
def test_a_path_that_is_no_inventory_has_a_remedy(
    tmp_path: Path, made: str | Callable[[Path], None], path: str, code: str, fix: str
) -> None:
    """A pipe is not opened: that would block. A newline would end a line of the written SSH configuration."""
    if callable(made):
        made(tmp_path)
    elif made:
        (tmp_path / made).touch()
    finding = only_finding(path if path.startswith("~") else tmp_path / path)
    assert finding.code == code
    assert not fix or finding.fix == fix.format(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights are missing. The tests may run as root, so the refusal is simulated."""

    def refuse(_: Path, _mode: str) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "prod.yaml").touch()
    monkeypatch.setattr(Path, "open", refuse)
    finding = only_finding(tmp_path / "prod.yaml")
    assert (finding.code, finding.evidence) == ("GP102", "Permission denied")


def test_fifty_megabytes_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size alone tells that it is no inventory; a file of /proc has none before it is read."""
    file = tmp_path / "prod.yaml"
    with file.open("wb") as stream:
        stream.truncate(50 << 20)
    monkeypatch.setattr(Path, "open", None)
    finding = only_finding(file)
    assert (finding.code, finding.evidence) == ("GP103", "52,428,800 bytes")
    monkeypatch.undo()
    monkeypatch.setattr(document, "MAX_BYTES", 100)
    finding = only_finding("/proc/self/status")
    assert (finding.code, finding.evidence) == ("GP103", "101 bytes")


@pytest.mark.parametrize(
    ("data", "line", "evidence"),
    [
        (b"name: caf\xe9\n", 1, "byte 0xe9"),
        (b"# one\n# two\nname: \xff\n", 3, "byte 0xff"),
        ("name: prod\n".encode("utf-16"), 1, "byte 0xff"),
        (b"name: prod\ncluster: \x00\n", 2, "U+0000"),
        (b"name: prod\n\x1b[31m: 1\n", 2, "U+001B"),
    ],
)
def test_bytes_that_are_no_text(tmp_path: Path, data: bytes, line: int, evidence: str) -> None:
    """Other encodings and control characters are named with their line."""
    file = tmp_path / "prod.yaml"
    file.write_bytes(data)
    finding = only_finding(file)
    assert (finding.code, finding.where, finding.evidence) == ("GP104", f"{file}:{line}", evidence)
