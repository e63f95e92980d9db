"""What has to change on a host, from its record alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.kernel import Kernel, KernelModules, Nouveau
from gpu_provision.hosts.facts.system import System
from gpu_provision.hosts.operations.modules import (
    MODULES_HEADER,
    NOUVEAU_LINES,
    missing_modules,
    module_changes,
    nouveau_changes,
)
from gpu_provision.hosts.reboot_rules import (
    reboot_needed,
    reboot_reasons,
)
from gpu_provision.model.findings import Severity

WANTED = ("i2c_core", "ipmi_msghandler")
FRESH = HostRecord(
    system=System(id="ubuntu"),
    kernel=Kernel(running="5.15.0-122-generic"),
    modules=KernelModules(
        loaded={"overlay": 1},
        built_in=frozenset({"i2c_core"}),
        available=frozenset({"ipmi_msghandler", "nouveau"}),
    ),
    nouveau=Nouveau(initramfs="/boot/initrd.img-5.15.0-122-generic", initramfs_tool="update-initramfs"),
)


def with_modules(record: HostRecord, **fields: Any) -> HostRecord:
    """Return the record with other modules."""
    return replace(record, modules=replace(record.modules, **fields))


def with_nouveau(record: HostRecord, **fields: Any) -> HostRecord:
    """Return the record with something else about nouveau."""
    return replace(record, nouveau=replace(record.nouveau, **fields))


DONE = with_nouveau(
    with_modules(FRESH, loaded={"overlay": 1, "ipmi_msghandler": 0}, own_file=(MODULES_HEADER, "ipmi_msghandler")),
    own_file=NOUVEAU_LINES,
)


def test_fresh_host_loads_what_is_not_built_in() -> None:
    """A built-in module is neither loaded nor listed for the boot."""
    changes = module_changes(FRESH, WANTED)
    assert changes.load == ("ipmi_msghandler",)
    assert changes.file == (MODULES_HEADER, "ipmi_msghandler")
    assert changes.file_differs
    assert not changes.missing


def test_finished_host_needs_nothing() -> None:
    """The second run changes nothing, in facts and in words."""
    modules, nouveau = module_changes(DONE, WANTED), nouveau_changes(DONE, blacklisted=True)
    assert (modules.words, nouveau.words) == ((), ())
    assert not modules.file_differs
    assert not nouveau.rebuild_initramfs


def test_dashed_and_doubled_names_are_one_module() -> None:
    """The kernel's spelling decides."""
    assert module_changes(DONE, ["ipmi-msghandler", "ipmi_msghandler", "i2c-core"]).words == ()


def test_module_that_is_loaded_but_unknown_to_the_index_is_present() -> None:
    """A module from outside the kernel's tree may be loaded by hand."""
    record = with_modules(FRESH, loaded={"special": 0})
    assert not module_changes(record, ["special"]).missing


def test_module_the_kernel_lacks_is_missing() -> None:
    """Neither loaded, nor built in, nor available."""
    record = with_modules(FRESH, built_in=frozenset(), available=frozenset())
    assert module_changes(record, WANTED).missing == WANTED


def test_no_loadable_module_means_no_file() -> None:
    """A file from an earlier inventory goes."""
    changes = module_changes(DONE, ["i2c_core"])
    assert changes.file is None
    assert changes.words == ("kernel modules listed for the boot: none",)


@pytest.mark.parametrize(
    ("os_id", "package"),
    [
        ("ubuntu", "linux-modules-extra-5.15.0-122-generic"),
        ("rhel", "kernel-modules-extra-"),
        ("debian", "cloud kernel"),
    ],
)
def test_missing_module_names_host_module_kernel_and_package(os_id: str, package: str) -> None:
    """The reader learns where the module comes from on this system."""
    finding = missing_modules(replace(FRESH, system=System(id=os_id)), "t4-1", ["ipmi_msghandler"])
    assert finding.where == "t4-1"
    assert "ipmi_msghandler" in finding.what
    assert "5.15.0-122-generic" in finding.what
    assert package in finding.fix
    assert "host_prerequisites.kernel_modules" in finding.fix


def test_missing_module_of_a_container_is_not_to_be_installed() -> None:
    """It runs with the kernel of its machine: a package or a reboot would change nothing."""
    finding = missing_modules(with_modules(FRESH, directory=False), "box-1", ["ipmi_msghandler"])
    assert "there is no /lib/modules/5.15.0-122-generic: a container, or a kernel without modules" in finding.evidence
    assert "apt-get" not in finding.fix
    assert "load modules on the machine whose kernel this is" in finding.fix


def test_missing_module_on_an_unknown_system_still_has_a_fix() -> None:
    """No guess at a package manager."""
    finding = missing_modules(replace(FRESH, system=System(id="plan9")), "t4-1", ["a", "b"])
    assert "kernel 5.15.0-122-generic" in finding.fix
    assert "take them off" in finding.fix


def test_fresh_host_gets_the_blacklist_and_a_new_initramfs() -> None:
    """Without the new image, nouveau would be back after a reboot."""
    changes = nouveau_changes(FRESH, blacklisted=True)
    assert changes.words == ("nouveau blacklisted", "initramfs rebuilt")


def test_interrupted_run_rebuilds_the_initramfs() -> None:
    """The file is there, the image is older."""
    changes = nouveau_changes(with_nouveau(DONE, initramfs_stale=True), blacklisted=True)
    assert changes.words == ("initramfs rebuilt",)


def test_host_without_initramfs_rebuilds_none() -> None:
    """Minimal systems boot without one, or have no tool for it."""
    for record in (with_nouveau(FRESH, initramfs=""), with_nouveau(FRESH, initramfs_tool="")):
        assert not nouveau_changes(record, blacklisted=True).rebuild_initramfs


def test_idle_nouveau_is_unloaded() -> None:
    """No users: it can go now."""
    changes = nouveau_changes(with_modules(FRESH, loaded={"nouveau": 0}), blacklisted=True)
    assert changes.unload


@pytest.mark.parametrize("users", [4, -1])
def test_nouveau_in_use_stays_until_the_reboot(users: int) -> None:
    """It is reported, and is no change."""
    record = with_modules(DONE, loaded={**DONE.modules.loaded, "nouveau": users})
    assert nouveau_changes(record, blacklisted=True).words == ()
    assert "nouveau is loaded and in use" in reboot_reasons(record)[0]


def test_nouveau_that_nobody_wants_away_is_no_reason_to_reboot() -> None:
    """The inventory may leave it alone."""
    assert reboot_reasons(with_modules(DONE, loaded={"nouveau": 4}), nouveau_unwanted=False) == ()


def test_system_that_asks_for_a_reboot_is_heard() -> None:
    """/run/reboot-required of Debian and Ubuntu."""
    assert "the system itself" in reboot_reasons(replace(DONE, system=System(reboot_required=True)))[0]


def test_blacklist_by_somebody_else_is_left_alone() -> None:
    """No second file, no rebuild."""
    record = with_nouveau(FRESH, blacklisted_elsewhere=True)
    assert nouveau_changes(record, blacklisted=True).words == ()


def test_own_blacklist_stays_beside_that_of_somebody_else() -> None:
    """Two files agreeing must not make ours flicker."""
    record = with_nouveau(DONE, blacklisted_elsewhere=True)
    assert nouveau_changes(record, blacklisted=True).words == ()


def test_edited_blacklist_of_ours_is_repaired() -> None:
    """Its content is ours."""
    record = with_nouveau(DONE, own_file=("# blacklist nouveau",))
    assert nouveau_changes(record, blacklisted=True).words == ("nouveau blacklisted", "initramfs rebuilt")


def test_blacklist_that_is_no_longer_wanted_goes() -> None:
    """And the initramfs with it; where there was none, nothing happens."""
    assert nouveau_changes(DONE, blacklisted=False).words == ("nouveau no longer blacklisted", "initramfs rebuilt")
    assert nouveau_changes(FRESH, blacklisted=False).words == ()


def test_reboot_is_a_warning() -> None:
    """The run goes on."""
    assert reboot_needed("t4-1", ["x"]).severity is Severity.WARNING
