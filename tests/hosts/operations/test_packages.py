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


def test_packages_live_one_life_on_every_family(tmp_path: Path, sandbox: Path) -> None:
    """Headers are installed, and held in the same run; off, on again, teardown: what was there before is there."""
    declared, off = with_packages(tmp_path, *LISTS, headers=True, hold=True), with_packages(tmp_path, *LISTS)
    prepare(off, dry_run=True)
    roots = {name: sandbox / "mine/hosts" / name for name in LISTS}
    before = {name: files(root) for name, root in roots.items()}
    for host in prepare(declared).hosts:
        installed, held = host.changes[len(FIRST) :]
        assert installed == f"kernel headers installed: {KERNELS[host.name]}"
        assert held.startswith("packages held: ")
        assert (roots[host.name] / f"lib/modules/{KERNELS[host.name]}/build/Makefile").exists()
    kept = {name: (roots[name] / path).read_text() for name, path in LISTS.items()}
    assert "hi  linux-image-" in kept["ubuntu-1"]
    assert "hi  linux-headers-" in kept["ubuntu-1"]
    assert "kernel-core-0:1-1.*\n" in kept["rhel-1"]
    assert "solvable_name: kernel-default\n" in kept["sles-1"]
    assert [host.changes for host in prepare(declared).hosts] == [(), (), ()]
    released = [host.changes for host in prepare(off).hosts]
    assert [words[0].startswith("packages released: ") for words in released] == [True, True, True]
    assert [host.changes for host in prepare(off).hosts] == [(), (), ()]
    prepare(declared)
    said = {host.name: host.changes for host in teardown(declared).hosts}
    assert [words[0].startswith("packages released: ") for words in said.values()] == [True, True, True]
    assert "packages removed: linux-headers-6.8.0-85-generic" in said["ubuntu-1"]
    left = {name: {path for path, content in files(root).items() if content} for name, root in roots.items()}
    assert left == {name: {path for path, content in contents.items() if content} for name, contents in before.items()}


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


def test_dnf_without_its_plugin_fails_the_host(tmp_path: Path, sandbox: Path) -> None:
    declared = with_packages(tmp_path, "rhel-1", hold=True)
    prepare(declared, dry_run=True)
    (sandbox / "mine/hosts/rhel-1/etc/dnf/plugins/versionlock.conf").unlink()
    (host,) = prepare(declared).hosts
    assert [finding.code for finding in host.errors] == ["GP681"]
    assert "python3-dnf-plugin-versionlock" in host.reason
