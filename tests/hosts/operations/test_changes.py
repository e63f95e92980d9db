"""What operations change on a host, decided from its facts alone; see test_changes.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.hosts.facts.host import HostFacts, parse
from gpu_provision.hosts.facts.runtime import ContainerRuntime, Kubernetes
from gpu_provision.hosts.facts.system import Settings
from gpu_provision.hosts.operations.backups import HostChange
from gpu_provision.hosts.operations.driver import (
    has_own_driver,
    missing_modules,
    module_changes,
    nouveau_changes,
    persistence_changes,
)
from gpu_provision.hosts.operations.packages import (
    headers_missing,
    headers_package,
    hold_changes,
    is_compiled_here,
    kernels_without_headers,
)
from gpu_provision.hosts.operations.runtime import desired_pattern, runtime_to_change, unsupported_reason
from gpu_provision.hosts.operations.settings import (
    hugepage_changes,
    hugepages_finding,
    limit_changes,
    settings_changes,
    shortages,
)
from gpu_provision.hosts.scripts import LINKS_SCRIPT
from gpu_provision.model.findings import Severity
from gpu_provision.model.hosts import Expectation
from tests import data_file

DATA: Mapping[str, list[dict[str, Any]]] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
OPERATIONS: Mapping[str, Callable[[HostFacts, Any], Iterable[HostChange | str]]] = {
    "modules": module_changes,
    "nouveau": lambda record, given: nouveau_changes(record, blacklisted=given),
    "settings": lambda record, given: settings_changes(record.settings, sysctls=given, links=False),
    "limits": lambda record, given: limit_changes(record.limits, given),
    "hugepages": hugepage_changes,
    "persistence": lambda record, given: persistence_changes(record, on=given),
    "holds": lambda record, given: hold_changes(record, "n", held=given),
    "headers": lambda record, _: [headers_package(record, each) for each in kernels_without_headers(record)],
    "compiled": lambda record, _: ["compiled"] if is_compiled_here(record) else [],
}
PATTERN = "/etc/containerd/conf.d/*.toml"
CONTAINERD = ContainerRuntime(
    kind="containerd",
    running=True,
    binary="/usr/bin/containerd",
    version="1.7.27",
    config="/etc/containerd/config.toml",
    has_config=True,
    schema=2,
    socket="/run/containerd/containerd.sock",
)
EXPECTED = Expectation(node="gpu-1", pool="t4", gpu_model="T4", gpu_count=1, toolkit_version="v1.20.0")


def record_of(facts: Mapping[str, list[str]]) -> HostFacts:
    lines = [line for section, own in facts.items() for line in (f"[{section}]", *own)]
    record = parse([*lines, "[end]"])
    assert record
    return record


def facts_of(name: str) -> HostFacts:
    return next(record_of(case["facts"]) for case in DATA["cases"] if case["case"] == name)


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: case["case"])
def test_changes_of_a_host(case: dict[str, Any]) -> None:
    made = OPERATIONS[case["operation"]](record_of(case["facts"]), case.get("given"))
    assert [each.description if isinstance(each, HostChange) else each for each in made] == case["changes"]


def commands(changes: Iterable[HostChange]) -> list[str]:
    """Return the last line of each command, without the functions before it."""
    return [str(command).rsplit("alone && ", 1)[-1] for each in changes for command in each.commands]


def test_what_is_held_is_listed_before_and_taken_off_after() -> None:
    names = "linux-image-6.1.0-25-amd64 nvidia-driver-550"
    listed, hold = commands(
        hold_changes(facts_of("kernels and drivers are held, DKMS and toolkit not"), "n", held=True)
    )
    assert f"{names} >/var/lib/gpu-provision/held-packages" in listed
    assert f"apt-mark -q hold {names}" in hold
    held = facts_of("nor released")
    held = replace(held, holds=replace(held.holds, ours=tuple(names.split())))
    release, listed = commands(hold_changes(held, "n", held=False))
    assert f"apt-mark -q unhold {names}" in release
    assert "rm -f /var/lib/gpu-provision/held-packages" in listed


@pytest.mark.parametrize("loaded", [True, False])
def test_links_are_made_at_once_only_with_a_loaded_driver(*, loaded: bool) -> None:
    """Otherwise udev makes them when one is."""
    changes = settings_changes(Settings(driver_loaded=loaded), sysctls={}, links=True)
    assert (f"sh {LINKS_SCRIPT}" in commands(changes)) is loaded


def test_pages_without_room_are_a_reason_to_reboot() -> None:
    tried = facts_of("pages without room are not asked for again")
    assert "room for 3 of 16 huge pages of 1Gi" in shortages(tried, {"1Gi": 16})[0]
    assert shortages(facts_of("unless their number changed"), {"1Gi": 16}) == ()
    unknown = replace(tried, hugepages=replace(tried.hugepages, memory=0))
    possible = [hugepages_finding(*each) is None for each in (
        (unknown, "n", {"1Gi": 1000}), (tried, "n", {"1Gi": 57}), (tried, "n", {"1Gi": 58}))]  # fmt: skip
    assert possible == [True, True, False]


@pytest.mark.parametrize("case", DATA["missing"], ids=lambda case: case["case"])
def test_missing_modules_name_the_package_of_the_system(case: dict[str, Any]) -> None:
    finding = missing_modules(record_of(case["facts"]), "t4-1", ["ipmi_msghandler", "b"])
    assert (finding.where, "ipmi_msghandler" in finding.what) == ("t4-1", True)
    assert all(text in finding.fix for text in case["fix"])
    assert ("apt-get" in finding.fix) == ("apt-get" in case["fix"])


def test_driver_of_the_host_is_not_used_beside_a_container() -> None:
    own = record_of({"driver": ["loaded 550.54.15", "filename /lib/modules/k/nvidia.ko"]})
    expected = {"node": "n", "pool": "p"}
    assert has_own_driver(own, None)
    assert not has_own_driver(own, expected)
    assert has_own_driver(own, {**expected, "driver_container": False})
    assert not has_own_driver(record_of({"driver": ["loaded 550.54.15", "container"]}), None)


def test_credentials_of_an_archive_are_not_told() -> None:
    known = record_of({"packages": ["manager rpm"], "holds": ["tool dnf"]})
    log = ["Error: Failed to download https://me:secret@mirror.example.com/repodata/repomd.xml"]
    finding = headers_missing(known, "n", ["k"], log)
    assert "secret" not in str(finding)
    assert "https://mirror.example.com/repodata" in finding.evidence


@pytest.mark.parametrize("case", DATA["imports"], ids=str)
def test_auto_imports_where_the_toolkit_writes_a_drop_in(case: dict[str, Any]) -> None:
    changes = case.get("expects", {})
    expected = None if changes is None else replace(EXPECTED, **changes)
    assert desired_pattern(case["wish"], expected) == case["pattern"]


@pytest.mark.parametrize("case", DATA["containerd"], ids=lambda case: case["case"])
def test_containerd_gets_the_import_or_is_left_alone(case: dict[str, Any]) -> None:
    fields = {name: tuple(value) if name == "imports" else value for name, value in case.get("runtime", {}).items()}
    kubelet = Kubernetes(**{"distribution": "kubeadm", "running": True, **case.get("kubelet", {})})
    record = HostFacts(runtimes=(replace(CONTAINERD, **fields),), kubernetes=kubelet)
    finding = unsupported_reason(record, "gpu-1", PATTERN)
    assert (runtime_to_change(record, PATTERN) is not None) == case.get("changed", False)
    assert (finding is not None) == ("told" in case)
    if finding:
        evidence, fix = case["told"]
        assert (finding.code, finding.where, finding.severity) == ("GP670", "gpu-1", Severity.WARNING)
        assert evidence in finding.evidence
        assert fix in finding.fix
