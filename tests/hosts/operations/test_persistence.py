"""Persistence mode of a host's own driver: decided from the record, done on simulated hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.hosts.facts.gpus import DAEMON
from gpu_provision.hosts.facts.host import command, parse
from gpu_provision.hosts.facts.system import Unit
from gpu_provision.hosts.runner import prepare, teardown
from gpu_provision.model.hosts import HostPrerequisites, Preflight
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts.spec import HostSpec
from tests.hosts.fleet import FIRST, files, inventory, only


@pytest.fixture
def own_driver(tmp_path: Path, sandbox: Path) -> tuple[Inventory, Path]:
    """An inventory of a host that has a driver of its own, only read yet, and the host's root."""
    declared = inventory(tmp_path, "driver-1")
    driver = replace(declared.pools["t4"].driver, enabled=False)
    pools = {**declared.pools, "t4": replace(declared.pools["t4"], driver=driver)}
    declared = replace(declared, pools=pools, preflight=Preflight(ignore=("GP615", "GP616", "GP620", "GP621", "GP623")))
    prepare(declared, dry_run=True)
    return declared, sandbox / "mine/hosts/driver-1"


def test_daemon_is_enabled_and_started_once_and_disabled_again(own_driver: tuple[Inventory, Path]) -> None:
    """First run, second run, stopped behind our back, switched off, on again, teardown."""
    declared, root = own_driver
    unit = root / f".sandbox/units/{DAEMON}.service"
    unit.write_text("inactive disabled\n")
    before = files(root)
    on = (f"persistence mode at every boot, by {DAEMON}", f"persistence mode on, by {DAEMON}")
    assert only(declared).changes == (*FIRST, *on)
    assert unit.read_text().split() == ["active", "enabled"]
    assert only(declared).changes == ()
    unit.write_text("inactive enabled\n")
    assert only(declared).changes == on[1:]
    t4 = replace(declared.pools["t4"], host_prerequisites=HostPrerequisites(persistence_mode=False))
    off = replace(declared, pools={**declared.pools, "t4": t4})
    assert only(off).changes == (f"units disabled: {DAEMON}",)
    assert only(off).changes == ()
    assert only(declared).changes == on[:1]
    assert f"units disabled: {DAEMON}" in teardown(declared).hosts[0].changes
    assert unit.read_text().split() == ["active", "disabled"]
    assert files(root).keys() - {str(unit.relative_to(root))} == before.keys() - {str(unit.relative_to(root))}


def test_daemon_that_runs_already_is_no_change(own_driver: tuple[Inventory, Path]) -> None:
    declared, root = own_driver
    assert only(declared).changes == FIRST
    teardown(declared)
    assert (root / f".sandbox/units/{DAEMON}.service").read_text().split()[:2] == ["active", "enabled"]


def test_driver_that_nothing_can_keep_initialized_is_a_warning(own_driver: tuple[Inventory, Path]) -> None:
    declared, root = own_driver
    (root / f".sandbox/units/{DAEMON}.service").unlink()
    result = prepare(declared)
    assert not result.failed
    assert "GP668" in [finding.code for finding in result.findings]


def test_host_without_systemd_is_prepared_with_a_warning(own_driver: tuple[Inventory, Path]) -> None:
    declared, root = own_driver
    tool = root / ".sandbox/bin/systemctl"
    tool.unlink()
    tool.write_text("#!/bin/sh\necho offline\necho 'Failed to connect to bus: Host is down' >&2\nexit 1\n")
    tool.chmod(0o755)
    result = prepare(declared)
    assert not result.failed
    (told,) = [finding for finding in result.findings if finding.code == "GP668"]
    assert "systemd does not run here" in told.evidence
    assert (root / f".sandbox/units/{DAEMON}.service").read_text().split()[:2] == ["active", "enabled"]


def test_driver_of_a_container_is_left_to_it(tmp_path: Path, sandbox: Path) -> None:
    declared = replace(inventory(tmp_path, "driver-1"), preflight=Preflight(ignore=("GP615", "GP620")))
    prepare(declared, dry_run=True)
    (sandbox / f"mine/hosts/driver-1/.sandbox/units/{DAEMON}.service").write_text("inactive disabled\n")
    assert only(declared).changes == FIRST


@pytest.mark.parametrize(("option", "off"), [("--no-persistence-mode", True), ("--persistence-mode", False)])
def test_a_daemon_with_the_option_off_is_detected(sandbox: Path, option: str, *, off: bool) -> None:
    host = hosts.ensure(HostSpec(name="d", driver="550.54.15"), sandbox)
    (host.directory / f".sandbox/units/{DAEMON}.service").write_text(f"active static /usr/bin/{DAEMON} {option}\n")
    seen = parse(hosts.run(host, command((), ("kernel", "services", "persistence"))).stdout.decode().splitlines())
    assert seen
    assert seen.persistence.daemon_off is off
    assert seen.services.unit(DAEMON) == Unit(DAEMON, "active", "static")
