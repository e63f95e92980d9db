"""Reading what the fact's script prints on hosts of many kinds; see data/."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_provision.hosts.record import UNKNOWN_USERS, HostRecord, canonical, parse

DATA = Path(__file__).parent / "data"
CASES = sorted(path.stem for path in DATA.glob("*.txt"))


def record_of(case: str) -> HostRecord:
    record = parse((DATA / f"{case}.txt").read_text().splitlines())
    assert record
    return record


@pytest.mark.parametrize("case", CASES)
def test_output_of_a_host_becomes_its_record(case: str) -> None:
    """Every kind of host is read as its requirement says."""
    expected, record = yaml.safe_load((DATA / f"{case}.yaml").read_text()), record_of(case)
    lists = {"modules_file", "nouveau_file"}
    wanted = {name: tuple(value) if name in lists and value else value for name, value in expected["record"].items()}
    assert {name: getattr(record, name) for name in wanted} == wanted
    assert record.built_in == set(expected["built_in"])
    assert record.available == set(expected["available"])
    assert record.at_boot == set(expected["at_boot"])
    assert record.loaded.get("nouveau") == expected.get("users_of_nouveau")
    assert [gpu.device for gpu in record.gpus] == expected["gpus"]
    assert [each.device for each in record.nvidia_devices if each not in record.gpus] == expected["others"]


def test_driver_of_a_gpu_is_known_where_one_is_bound() -> None:
    """The driver's name stands with the device; none is the empty text."""
    drivers = {device.driver for device in record_of("ubuntu-24.04-h100").nvidia_devices}
    assert drivers == {"nvidia", ""}


def test_output_without_a_kernel_is_no_record() -> None:
    """A host that does not even name its kernel is not guessed at."""
    assert parse([]) is None
    assert parse(["sh: 1: uname: not found"]) is None


def test_kernel_that_cannot_unload_hides_the_users_of_a_module() -> None:
    """A dash instead of a number is not zero users."""
    record = parse(["kernel 6.1", "loaded nouveau 100 - - Live 0x0"])
    assert record
    assert record.loaded == {"nouveau": UNKNOWN_USERS}


def test_empty_file_of_ours_differs_from_no_file() -> None:
    """Somebody may have emptied it; that is drift."""
    empty, absent = parse(["kernel 1", "own-modules "]), parse(["kernel 1"])
    assert empty
    assert absent
    assert (empty.modules_file, absent.modules_file) == ((), None)


def test_blacklist_of_another_module_is_not_nouveaus() -> None:
    """Only the exact module counts."""
    record = parse(["kernel 1", "modprobe blacklist nouveau_drm", "cmdline modprobe.blacklist=nouveaux,radeon"])
    assert record
    assert not record.nouveau_blacklisted


@pytest.mark.parametrize("name", ["ipmi-msghandler", "ipmi_msghandler", " ipmi_msghandler "])
def test_dashes_and_underscores_name_the_same_module(name: str) -> None:
    """As they do for the kernel."""
    assert canonical(name) == "ipmi_msghandler"
