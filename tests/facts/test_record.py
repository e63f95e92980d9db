"""Reading what the command prints on hosts of many kinds; see systems/."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.facts.modules import UNKNOWN_USERS, canonical
from gpu_provision.facts.record import ALL, HostRecord, parse
from tests import data_file

SYSTEMS = Path(__file__).parent / "systems"
CASES = sorted(path.stem for path in SYSTEMS.glob("*.txt"))


def record_of(case: str) -> HostRecord:
    record = parse((SYSTEMS / f"{case}.txt").read_text().splitlines())
    assert record
    return record


def read(*lines: str) -> HostRecord:
    """Return the record of some lines, which need not name a kernel."""
    record = parse([*lines, "[end]"])
    assert record
    return record


@pytest.mark.parametrize("case", CASES)
def test_output_of_a_host_becomes_its_record(case: str) -> None:
    """Every kind of host is read as its requirement says."""
    expected, record = data_file.document((SYSTEMS / f"{case}.yaml").read_text()), record_of(case)
    assert expected.pop("requirement")
    for section, fields in expected.items():
        if fields is None:
            assert getattr(record, section) is None
            continue
        seen = {path: _plain(_value(getattr(record, section), path)) for path in fields}
        assert seen == fields


@pytest.mark.parametrize("case", CASES)
def test_record_of_every_host_can_be_printed_as_json(case: str) -> None:
    """Stock pyinfra asks for it by ``to_json``; nothing is left out, nothing unsorted."""
    record = record_of(case)
    printed = json.loads(json.dumps(record.to_json()))
    assert set(printed) == {each.name for each in dataclasses.fields(HostRecord)}
    assert printed["kernel"]["running"] == record.kernel.running
    assert printed["modules"]["loaded"] == dict(record.modules.loaded)
    assert printed["read"] == sorted(record.read)
    assert len(printed["pci"]["devices"]) == len(record.pci.devices)


def _value(part: Any, path: str) -> Any:
    """Follow a path such as ``gpus.device`` or ``next.release``; of a list, take it from each element."""
    for step in path.split("."):
        if isinstance(part, (tuple, list)) and not hasattr(part, step):
            part = [getattr(each, step) for each in part]
        else:
            part = part.get(step) if isinstance(part, dict) else getattr(part, step)
    return part


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("case", CASES)
def test_every_file_names_its_source(case: str) -> None:
    """What was not recorded says so."""
    first = (SYSTEMS / f"{case}.txt").read_text().partition("\n")[0]
    assert first.startswith(("# recorded ", "# reconstructed"))


def test_driver_of_a_gpu_is_known_where_one_is_bound() -> None:
    """The driver's name stands with the device; none is the empty text."""
    devices = record_of("ubuntu-24.04-h100").pci.devices
    assert {device.driver for device in devices} == {"nvidia", ""}


@pytest.mark.parametrize("output", [[], ["sh: 1: uname: not found"], ["[kernel]", "running ", "[end]"]])
def test_output_without_a_kernel_is_no_record(output: list[str]) -> None:
    """A host that does not even name its kernel is not guessed at."""
    assert parse(output) is None


def test_output_that_breaks_off_is_no_record() -> None:
    """Half of the truth would look like a host without a GPU."""
    assert parse(["[kernel]", "running 6.1", "[pci]"]) is None


def test_record_knows_what_was_read() -> None:
    """A section that nobody asked for is not taken for an empty one."""
    record = read("[pci]", "device 0000:01:00.0 0x10de 0x1eb8 0x030200 ", "[asked]", "modules a b")
    assert record.read == {"pci"}
    assert record.asked == {"a", "b"}
    assert record_of("minimal").read < set(ALL)


def test_no_line_of_a_host_passes_for_a_heading() -> None:
    """Content of files stands behind a word of ours."""
    record = read("[kernel]", "running 6.1", "[modules]", "own [pci]", "own a")
    assert record.modules.own_file == ("[pci]", "a")


def test_kernel_that_cannot_unload_hides_the_users_of_a_module() -> None:
    """A dash instead of a number is not zero users."""
    assert read("[modules]", "loaded nouveau 100 - - Live 0x0").modules.loaded == {"nouveau": UNKNOWN_USERS}


def test_empty_file_of_ours_differs_from_no_file() -> None:
    """Somebody may have emptied it; that is drift."""
    assert read("[modules]", "own ").modules.own_file == ()
    assert read("[modules]").modules.own_file is None


def test_blacklist_of_another_module_is_not_nouveaus() -> None:
    """Only the exact module counts."""
    record = read("[nouveau]", "modprobe blacklist nouveau_drm", "cmdline modprobe.blacklist=nouveaux,radeon")
    assert not record.nouveau.blacklisted


@pytest.mark.parametrize("name", ["ipmi-msghandler", "ipmi_msghandler", " ipmi_msghandler "])
def test_dashes_and_underscores_name_the_same_module(name: str) -> None:
    """As they do for the kernel."""
    assert canonical(name) == "ipmi_msghandler"


def test_program_of_a_runtime_that_only_root_may_know_is_the_installed_one() -> None:
    """Its version then comes from there."""
    config = "config /etc/containerd/config.toml"
    installed = ("binary /usr/bin/containerd", "version containerd containerd.io 1.7.27 abc")
    lines = ("runtime run containerd", config, "end ", "runtime have containerd", *installed, config, "end ")
    (runtime,) = read("[runtimes]", *lines).runtimes
    assert (runtime.running, runtime.binary, runtime.version) == (True, "/usr/bin/containerd", "1.7.27")


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [
        ("/run/cri-dockerd.sock", "docker"),
        ("/run/containerd/containerd.sock", "containerd"),
        ("/run/other.sock", None),
    ],
)
def test_runtime_of_the_kubelet_is_the_one_that_it_speaks_to(endpoint: str, kind: str | None) -> None:
    """Docker's own containerd is not, where cri-dockerd stands between."""
    containerd = ("runtime run containerd", "config /etc/containerd/config.toml", "end ")
    docker = ("runtime run docker", "config /etc/docker/daemon.json", "socket /run/docker.sock", "end ")
    kubelet = ("process kubelet", f"flag kubelet --container-runtime-endpoint=unix://{endpoint}", "kubelet ")
    record = read("[runtimes]", *containerd, *docker, "[kubernetes]", *kubelet)
    assert (record.cri.kind if record.cri else None) == kind


def test_huge_pages_and_what_was_tried_of_them() -> None:
    """Sizes as Kubernetes writes them; a number of pages that is none of ours is no file of ours."""
    lines = ("pages 1048576kB 3", "pages 2048kB 0", "attempt 1Gi 16 3", "attempt ", "memory 24684096", "unaware k3s[7]")
    found = read("[hugepages]", *lines).hugepages
    assert found.pages == {"1Gi": 3, "2Mi": 0}
    assert (found.attempts, found.memory, found.unaware) == ({"1Gi": (16, 3)}, 24684096 * 1024, ("k3s[7]",))
    assert found.own_file is None


def test_limits_of_a_runtime_without_a_unit() -> None:
    """Not everything is started by systemd."""
    lines = ("limit 812 containerd - memlock 8388608 unlimited", "limit 812 containerd - core 0 unlimited")
    (found,) = read("[limits]", *lines).limits.runtimes
    assert (found.pid, found.name, found.unit) == (812, "containerd", "")
    assert found.limits == {"memlock": ("8388608", "unlimited"), "core": ("0", "unlimited")}


@pytest.mark.parametrize(
    ("lines", "path", "value"),
    [
        (("[pci]", "device 0000:01:00.0 0x10de 0x1eb8 0x0302"), "devices", ()),
        (("[pci]", "device 0000:01:00.0 0x10de 0x1e"), "devices", ()),
        (("[modules]", "loaded nvidia"), "loaded", {}),
        (("[packages]", "package i nvidia-dri"), "installed", ()),
        (("[storage]", "place /var /dev/sda1 102400 51200 512"), "places", ()),
        (("[storage]", f"place /var /dev/sda1 1 1 {'9' * 5000} 50% /"), "places", ()),
        (("[services]", "holder 41 - /dev/nv"), "holders", ()),
        (("[services]", f"holder {'9' * 5000} - /dev/nvidia0 x"), "holders", ()),
        (("[limits]", "limit 812 containerd - memlock 8388608"), "runtimes", ()),
        (("[hugepages]", "pages 0kB 3", "pages 2048kB ", "pages ²kB 1"), "pages", {}),
        (("[hugepages]", "attempt 1Gi 16", "attempt 16 1Gi 3"), "attempts", {}),
        (("[kernel]", "running 6.1", f"page-size {'9' * 5000}"), "page_size", 0),
        (("[system]", "time ٣"), "time", None),
        (("[confinement]", f"cgroup {'9' * 5000}"), "cgroup", 0),
        (("[kubernetes]", "mark "), "distribution", ""),
    ],
)
def test_line_that_cannot_be_read_says_nothing(lines: tuple[str, ...], path: str, value: object) -> None:
    """Half a line would name another device, module or package than there is."""
    record = read(*lines)
    assert getattr(getattr(record, lines[0].strip("[]")), path) == value


@pytest.mark.parametrize(
    "lines",
    [
        ("runtime run containerd", "config /etc/x"),
        ("runtime ", "end "),
        ("runtime run", "end "),
        ("runtime run contai", "end "),
    ],
)
def test_runtime_whose_description_breaks_off_is_left_out(lines: tuple[str, ...]) -> None:
    """The one after it is read, with nothing of it."""
    (runtime,) = read("[runtimes]", *lines, "runtime have docker", "binary /usr/bin/dockerd", "end ").runtimes
    assert (runtime.kind, runtime.running, runtime.config) == ("docker", False, "")
