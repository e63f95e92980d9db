"""Kernel headers and held packages on hosts of three families."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision.hosts.runner import prepare, teardown
from gpu_provision.model.inventory import Inventory
from tests.hosts.fleet import FIRST, files, inventory, with_settings

KERNELS = {
    "ubuntu-1": "6.8.0-85-generic",
    "rhel-1": "5.14.0-427.13.1.el9_4.x86_64",
    "sles-1": "6.4.0-150600.23.47-default",
}
LISTS = {"ubuntu-1": ".sandbox/packages", "rhel-1": "etc/dnf/plugins/versionlock.list", "sles-1": "etc/zypp/locks"}


def with_packages(directory: Path, *names: str, headers: bool | str = False, hold: bool = False) -> Inventory:
    """Return an inventory of some hosts, with headers installed or packages held."""
    return with_settings(inventory(directory, *names), kernel_headers=headers, hold_packages=hold)


def test_headers_are_installed_once_and_removed_on_every_family(tmp_path: Path, sandbox: Path) -> None:
    """First run, second run, switched off, teardown: what was there before is there, and nothing else."""
    off = with_packages(tmp_path, *KERNELS)
    prepare(off, dry_run=True)
    roots = {name: sandbox / "mine/hosts" / name for name in KERNELS}
    before = {name: files(root) for name, root in roots.items()}
    declared = with_packages(tmp_path, *KERNELS, headers=True)
    changed = {host.name: host.changes for host in prepare(declared).hosts}
    assert changed == {name: (*FIRST, f"kernel headers installed: {kernel}") for name, kernel in KERNELS.items()}
    for name, kernel in KERNELS.items():
        assert (roots[name] / f"lib/modules/{kernel}/build/Makefile").exists()
    assert [host.changes for host in prepare(declared).hosts] == [(), (), ()]
    assert [host.changes for host in prepare(off).hosts] == [(), (), ()]
    said = {host.name: host.changes[0] for host in teardown(declared).hosts}
    assert said["ubuntu-1"] == "packages removed: linux-headers-6.8.0-85-generic"
    assert {name: files(root) for name, root in roots.items()} == before


def test_headers_are_held_in_the_run_that_installs_them(tmp_path: Path, sandbox: Path) -> None:
    """Otherwise the second run would not be without changes; teardown releases and removes them."""
    declared = with_packages(tmp_path, "ubuntu-1", headers=True, hold=True)
    first, second = prepare(declared), prepare(declared)
    headers = "linux-headers-6.8.0-85-generic"
    assert first.hosts[0].changes[-1] == f"packages held: {headers}, linux-image-6.8.0-85-generic"
    assert second.hosts[0].changes == ()
    teardown(declared)
    packages = (sandbox / "mine/hosts/ubuntu-1/.sandbox/packages").read_text()
    assert packages == "ii  linux-image-6.8.0-85-generic 1\n"


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("name", "said"), [("old-1", "E: Unable to locate package"), ("old-2", "Error: Unable to find a match")]
)
def test_archive_without_them_fails_the_host_with_its_own_words(tmp_path: Path, name: str, said: str) -> None:
    (host,) = prepare(with_packages(tmp_path, name, headers=True)).hosts
    (finding,) = host.errors
    assert finding.code == "GP665"
    assert finding.evidence.startswith(said)
    assert "then reboot into it" in finding.fix
    assert not [
        words for words in teardown(with_packages(tmp_path, name, headers=True)).hosts[0].changes if "packages" in words
    ]


@pytest.mark.usefixtures("sandbox")
def test_driver_container_needs_no_headers_of_the_host(tmp_path: Path) -> None:
    assert [host.changes for host in prepare(with_packages(tmp_path, "ubuntu-1", headers="auto")).hosts] == [FIRST]


def test_packages_are_held_once_and_released_on_every_family(tmp_path: Path, sandbox: Path) -> None:
    """First run, second run, switched off, on again, teardown: what the package manager keeps is as it was."""
    declared, off = with_packages(tmp_path, *LISTS, hold=True), with_packages(tmp_path, *LISTS)
    prepare(off, dry_run=True)
    roots = {name: sandbox / "mine/hosts" / name for name in LISTS}
    before = {name: files(root) for name, root in roots.items()}
    changed = [host.changes[len(FIRST) :] for host in prepare(declared).hosts]
    assert [words[0].startswith("packages held: ") for words in changed] == [True, True, True]
    kept = {name: (roots[name] / path).read_text() for name, path in LISTS.items()}
    assert kept["ubuntu-1"].startswith("hi  linux-image-")
    assert (kept["rhel-1"], kept["sles-1"]) == ("kernel-core-0:1-1.*\n", "solvable_name: kernel-default\n")
    assert [host.changes for host in prepare(declared).hosts] == [(), (), ()]
    released = [host.changes for host in prepare(off).hosts]
    assert [words[0].startswith("packages released: ") for words in released] == [True, True, True]
    assert [host.changes for host in prepare(off).hosts] == [(), (), ()]
    prepare(declared)
    result = teardown(declared)
    assert [host.changes[0].startswith("packages released: ") for host in result.hosts] == [True, True, True]
    assert (roots["ubuntu-1"] / LISTS["ubuntu-1"]).read_text().startswith("ii  linux-image-")
    left = {name: {path for path, content in files(root).items() if content} for name, root in roots.items()}
    assert left == {name: {path for path, content in contents.items() if content} for name, contents in before.items()}


def test_dnf_without_its_plugin_fails_the_host(tmp_path: Path, sandbox: Path) -> None:
    declared = with_packages(tmp_path, "rhel-1", hold=True)
    prepare(declared, dry_run=True)
    (sandbox / "mine/hosts/rhel-1/etc/dnf/plugins/versionlock.conf").unlink()
    (host,) = prepare(declared).hosts
    assert [finding.code for finding in host.errors] == ["GP681"]
    assert "python3-dnf-plugin-versionlock" in host.reason
