"""A file that is no inventory is answered with one clear finding, without reading more than needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_provision.inventory import check, document, load
from gpu_provision.model.findings import ExitCode, Finding, InvalidInventory


def only_finding(path: Path | str) -> Finding:
    """Return the one finding that a file gets."""
    (finding,) = check(path).all
    assert finding.where.startswith(str(path))
    assert finding.what
    return finding


def test_a_missing_file_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    """A typo in the name is the usual cause."""
    (tmp_path / "prod.yaml").touch()
    finding = only_finding(tmp_path / "prdo.yaml")
    assert finding.code == "GP101"
    assert finding.fix == f"Did you mean {tmp_path / 'prod.yaml'}?"


def test_files_that_share_the_suffix_only_are_not_near(tmp_path: Path) -> None:
    (tmp_path / "bin.yaml").write_text("a: 1")
    assert only_finding(tmp_path / "missing.yaml").fix == "Name an existing YAML file."


def test_a_missing_file_in_a_missing_directory(tmp_path: Path) -> None:
    """Then the directory is what is wrong."""
    finding = only_finding(tmp_path / "inventory" / "prod.yaml")
    assert (finding.code, str(tmp_path / "inventory") in finding.fix) == ("GP101", True)


def test_a_file_below_a_file(tmp_path: Path) -> None:
    """The system's error for it is another one, the answer is the same."""
    (tmp_path / "prod.yaml").touch()
    assert only_finding(tmp_path / "prod.yaml" / "more.yaml").code == "GP101"


def test_a_directory_is_answered_with_its_files(tmp_path: Path) -> None:
    """Naming inventories/ instead of inventories/prod.yaml."""
    (tmp_path / "prod.yaml").touch()
    finding = only_finding(tmp_path)
    assert (finding.code, "prod.yaml" in finding.fix) == ("GP102", True)


def test_a_pyinfra_inventory_is_answered_with_its_yaml(tmp_path: Path) -> None:
    """The .py beside the YAML is for pyinfra."""
    (tmp_path / "prod.py").write_text("hosts = []\n")
    finding = only_finding(tmp_path / "prod.py")
    assert (finding.code, "prod.yaml" in finding.fix) == ("GP102", True)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Opening a pipe would block for ever."""
    os.mkfifo(tmp_path / "prod.yaml")
    assert only_finding(tmp_path / "prod.yaml").code == "GP102"


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights are missing. The tests may run as root, so the refusal is simulated."""

    def refuse(_: Path, _mode: str) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "prod.yaml").touch()
    monkeypatch.setattr(Path, "open", refuse)
    finding = only_finding(tmp_path / "prod.yaml")
    assert (finding.code, finding.evidence) == ("GP102", "Permission denied")


def test_a_path_that_no_file_can_have() -> None:
    """A zero byte in a path raises ValueError, not OSError."""
    assert only_finding("prod\0.yaml").code == "GP102"


def test_a_path_with_a_newline_is_refused(tmp_path: Path) -> None:
    """Files that an inventory names relative to its folder go into a configuration of SSH, line by line."""
    folder = tmp_path / "a\n  ProxyCommand b"
    folder.mkdir()
    (folder / "prod.yaml").write_text("name: prod\n")
    assert only_finding(folder / "prod.yaml").code == "GP102"


def test_a_home_of_nobody() -> None:
    """A tilde in front of an unknown user's name is no crash."""
    assert only_finding("~no-such-user/prod.yaml").code == "GP101"


def test_fifty_megabytes_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size alone tells that it is no inventory."""
    file = tmp_path / "prod.yaml"
    with file.open("wb") as stream:
        stream.truncate(50 << 20)
    monkeypatch.setattr(Path, "open", None)
    finding = only_finding(file)
    assert (finding.code, finding.evidence) == ("GP103", "52,428,800 bytes")


def test_reading_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of /proc has no size before it is read."""
    monkeypatch.setattr(document, "LIMIT", 100)
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


def test_utf_16_is_recognized(tmp_path: Path) -> None:
    """Editors on Windows write it."""
    (tmp_path / "prod.yaml").write_bytes("name: prod\n".encode("utf-16"))
    assert "UTF-16" in only_finding(tmp_path / "prod.yaml").fix


def test_load_raises_with_the_exit_code_of_bad_inventories(tmp_path: Path) -> None:
    """Whatever is wrong with the file, the caller catches one exception."""
    with pytest.raises(InvalidInventory) as raised:
        load(tmp_path / "missing.yaml")
    assert raised.value.exit_code is ExitCode.INVALID_INVENTORY
    assert "GP101" in str(raised.value)
