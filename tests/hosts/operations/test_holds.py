"""Kernel and driver packages that stay as they are: decided from records, done on hosts of three families."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.hosts.runner import prepare, teardown
from gpu_provision.inventory import load
from gpu_provision.model.hosts import HostPrerequisites
from gpu_provision.model.inventory import Inventory
from tests.hosts.operations.test_teardown import files
from tests.hosts.test_runner import FIRST

FLEET = """
nodes:
- {name: ubuntu-1, gpu: {model: T4, count: 1}}
- {name: rhel-1, os: rhel9.4, gpu: {model: T4, count: 1}}
- {name: sles-1, os: sles15.6, gpu: {model: T4, count: 1}}
"""
INVENTORY = """
name: test
cluster: {sandbox: FLEET}
release: "26.7.0"
pools: {t4: {gpu: {model: T4, count: 1}}}
nodes: [{name: ubuntu-1, pool: t4}, {name: rhel-1, pool: t4}, {name: sles-1, pool: t4}]
"""
LISTS = {
    "ubuntu-1": ".sandbox/packages",
    "rhel-1": "etc/dnf/plugins/versionlock.list",
    "sles-1": "etc/zypp/locks",
}


@pytest.fixture
def declared(tmp_path: Path) -> Inventory:
    """One host of each family, with packages held."""
    (tmp_path / "families.yaml").write_text(FLEET)
    (tmp_path / "inventory.yaml").write_text(INVENTORY.replace("FLEET", str(tmp_path / "families.yaml")))
    return with_hold(load(tmp_path / "inventory.yaml"), hold=True)


def with_hold(inventory: Inventory, *, hold: bool) -> Inventory:
    """Return the inventory with packages held, or not."""
    pool = replace(inventory.pools["t4"], host_prerequisites=HostPrerequisites(hold_packages=hold))
    return replace(inventory, pools={"t4": pool})


def test_packages_are_held_once_and_released_on_every_family(declared: Inventory, sandbox: Path) -> None:
    """First run, second run, switched off, on again, teardown: what the package manager keeps is as it was."""
    off = with_hold(declared, hold=False)
    prepare(off, dry_run=True)
    roots = {name: sandbox / "families/hosts" / name for name in LISTS}
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


def test_dnf_without_its_plugin_fails_the_host(declared: Inventory, sandbox: Path) -> None:
    """With the package that brings it."""
    only = replace(declared, nodes=declared.nodes[1:2])
    prepare(only, dry_run=True)
    (sandbox / "families/hosts/rhel-1/etc/dnf/plugins/versionlock.conf").unlink()
    (host,) = prepare(only).hosts
    assert [finding.code for finding in host.errors] == ["GP681"]
    assert "python3-dnf-plugin-versionlock" in host.reason
