"""What operations change on a host, decided from its record alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.hosts.facts.gpus import DAEMON, Driver, Persistence
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.kernel import Kernel, KernelModules, Nouveau
from gpu_provision.hosts.facts.packages import Holds, Package, Packages
from gpu_provision.hosts.facts.runtime import ProcessLimits, RuntimeLimits
from gpu_provision.hosts.facts.system import Hugepages, Services, Settings, System, Unit
from gpu_provision.hosts.operations.backups import HostChange
from gpu_provision.hosts.operations.driver import (
    MODULES_HEADER,
    NOUVEAU_LINES,
    PROGRAM,
    UNIT_LINES,
    missing_modules,
    module_changes,
    nouveau_changes,
    persistence_changes,
)
from gpu_provision.hosts.operations.packages import hold_changes
from gpu_provision.hosts.operations.settings import (
    SYSCTL_HEADER,
    hugepage_changes,
    impossible_hugepages,
    limit_changes,
    settings_changes,
    shortages,
)
from gpu_provision.hosts.scripts import LINKS_SCRIPT, PERSISTENCE_UNIT, SYSCTL_FILE

MODULES = ("i2c_core", "ipmi_msghandler")
FRESH = HostRecord(
    system=System(id="ubuntu"),
    kernel=Kernel(running="5.15.0-122-generic"),
    modules=KernelModules(
        loaded={"overlay": 1}, built_in=frozenset({"i2c_core"}), available=frozenset({"ipmi_msghandler", "nouveau"})
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
REBUILT, LISTED = "initramfs rebuilt", "kernel modules listed for the boot:"
NOT_REBUILT = [with_nouveau(FRESH, initramfs=""), with_nouveau(FRESH, initramfs_tool="")]
IN_USE = [with_modules(DONE, loaded={**DONE.modules.loaded, "nouveau": users}) for users in (4, -1)]
IDLE = with_modules(DONE, loaded={**DONE.modules.loaded, "nouveau": 0})

SYSCTLS = {"vm.max_map_count": "262144", "net.ipv4.tcp_rmem": "4096 131072 16777216"}
SET = Settings(
    files={SYSCTL_FILE: (SYSCTL_HEADER, *(f"{key} = {value}" for key, value in SYSCTLS.items()))}, running=SYSCTLS
)

MEMLOCK = {"memlock": "unlimited"}
OTHER_DROP_IN = "/etc/systemd/system/docker.service.d/90-gpu-provision-limits.conf"


def containerd(unit: str = "containerd.service", soft: str = "unlimited") -> ProcessLimits:
    """Return a containerd with a limit."""
    return ProcessLimits(812, "containerd", unit, {"memlock": (soft, "unlimited")})


PAGES = Hugepages(pages={"2Mi": 0, "1Gi": 0}, memory=64 << 30)
KUBELET = Services(units=(Unit("kubelet", "active", "enabled"),))


def pages(known: Hugepages = PAGES, services: Services = KUBELET) -> HostRecord:
    """Return a host with huge pages."""
    return HostRecord(hugepages=known, services=services)


def kept(wanted: dict[str, int]) -> tuple[str, ...] | None:
    """Return the file for the boot."""
    return next(new for each in hugepage_changes(pages(), wanted) for _, new in each.files.values())


TRIED = replace(PAGES, pages={"1Gi": 3}, attempts={"1Gi": (16, 3)}, own_file=kept({"1Gi": 16}))
RESERVED = replace(PAGES, pages={"2Mi": 512}, own_file=kept({"2Mi": 512}))
RESTARTED, KEPT = "kubelet restarted, to count huge pages", "huge pages kept for the boot"

HOST = Driver(loaded="550.54.15", module="/lib/modules/k/nvidia.ko", programs=(PROGRAM,))


def driver(*units: Unit, driver: Driver = HOST, known: Persistence | None = None) -> HostRecord:
    """Return a host with a driver of its own and these units."""
    return HostRecord(driver=driver, services=Services(units=units), persistence=known or Persistence())


RUNS, OWN_RUNS = Unit(DAEMON, "active", "static"), Unit(PERSISTENCE_UNIT, "active", "enabled")
OWN = Persistence(own_file=UNIT_LINES, enabled=(PERSISTENCE_UNIT,))
OWN_UNIT = (
    f"unit {PERSISTENCE_UNIT} made",
    f"persistence mode at every boot, by {PERSISTENCE_UNIT}",
    f"persistence mode on, by {PERSISTENCE_UNIT}",
)

KERNEL, PACKAGE = Package("linux-image-6.1.0-25-amd64", "6.1"), Package("nvidia-driver-550", "550.90.07")
LOOSE = HostRecord(
    packages=Packages(
        manager="dpkg", installed=(KERNEL, PACKAGE, Package("dkms", "3"), Package("nvidia-container-toolkit", "1.18"))
    ),
    holds=Holds(tools=("apt-mark",)),
)
HELD = replace(
    LOOSE,
    packages=replace(LOOSE.packages, installed=(replace(KERNEL, held=True), replace(PACKAGE, held=True))),
    holds=Holds(tools=("apt-mark",), ours=(KERNEL.name, PACKAGE.name)),
)
NAMES = f"{KERNEL.name}, {PACKAGE.name}"

CASES: dict[str, tuple[Iterable[HostChange], tuple[str, ...]]] = {
    "dashed and doubled names are one module": (module_changes(DONE, ["ipmi-msghandler", *MODULES, "i2c-core"]), ()),
    "without a loadable module the file goes": (module_changes(DONE, ["i2c_core"]), (f"{LISTED} none",)),
    "an image older than the blacklist is rebuilt": (
        nouveau_changes(with_nouveau(DONE, initramfs_stale=True), blacklisted=True),
        (REBUILT,),
    ),
    "no initramfs is not rebuilt": (nouveau_changes(NOT_REBUILT[0], blacklisted=True), ("nouveau blacklisted",)),
    "nor without a tool": (nouveau_changes(NOT_REBUILT[1], blacklisted=True), ("nouveau blacklisted",)),
    "also with an unknown number of users": (nouveau_changes(IN_USE[1], blacklisted=True), ()),
    "a blacklist of others will do": (
        nouveau_changes(with_nouveau(FRESH, blacklisted_elsewhere=True), blacklisted=True),
        (),
    ),
    "and does not remove the own one": (
        nouveau_changes(with_nouveau(DONE, blacklisted_elsewhere=True), blacklisted=True),
        (),
    ),
    "an edited blacklist is repaired": (
        nouveau_changes(with_nouveau(DONE, own_file=("# blacklist nouveau",)), blacklisted=True),
        ("nouveau blacklisted", REBUILT),
    ),
    "a blacklist that is no longer declared goes": (
        nouveau_changes(DONE, blacklisted=False),
        ("nouveau no longer blacklisted", REBUILT),
    ),
    "tabs and blanks in values are the same": (settings_changes(SET, sysctls=SYSCTLS, links=False), ()),
    "limits go to the units of runtimes": (
        limit_changes(RuntimeLimits(runtimes=(containerd("k3s.service"), containerd("docker.service"))), MEMLOCK),
        ("limits kept for the boot: docker.service, k3s.service",),
    ),
    "a drop-in of another unit goes": (
        limit_changes(RuntimeLimits(runtimes=(containerd(),), files={OTHER_DROP_IN: ("x",)}), MEMLOCK),
        ("limits kept for the boot: containerd.service", "limits no longer kept for the boot: docker.service"),
    ),
    "pages without room are not asked for again": (hugepage_changes(pages(TRIED), {"1Gi": 16}), ()),
    "unless their number changed": (
        hugepage_changes(pages(replace(TRIED, pages={"1Gi": 2})), {"1Gi": 16}),
        ("huge pages reserved: 16 x 1Gi (2 before)", RESTARTED),
    ),
    "or another number is declared": (
        hugepage_changes(pages(TRIED), {"1Gi": 8}),
        ("huge pages reserved: 8 x 1Gi (3 before)", KEPT, RESTARTED),
    ),
    "an own unit replaces one with persistence mode off": (
        persistence_changes(driver(RUNS, known=Persistence(daemon_off=True)), on=True),
        OWN_UNIT,
    ),
    "or a masked one": (persistence_changes(driver(Unit(DAEMON, "inactive", "masked")), on=True), OWN_UNIT),
    "or none": (persistence_changes(driver(), on=True), OWN_UNIT),
    "without nvidia-smi there is no unit": (
        persistence_changes(driver(driver=replace(HOST, programs=())), on=True),
        (),
    ),
    "with another comment, too": (
        persistence_changes(driver(OWN_RUNS, known=replace(OWN, own_file=("# x", *UNIT_LINES[1:]))), on=True),
        (),
    ),
    "it goes when the daemon comes": (
        persistence_changes(driver(OWN_RUNS, Unit(DAEMON, "active", "enabled"), known=OWN), on=True),
        (f"units disabled: {PERSISTENCE_UNIT}", f"unit {PERSISTENCE_UNIT} removed"),
    ),
    "a static daemon is started alone": (
        persistence_changes(driver(Unit(DAEMON, "inactive", "static")), on=True),
        (f"persistence mode on, by {DAEMON}",),
    ),
    "none is started before its driver is loaded": (
        persistence_changes(driver(Unit(DAEMON, "inactive", "disabled"), driver=replace(HOST, loaded="")), on=True),
        (f"persistence mode at every boot, by {DAEMON}",),
    ),
    "kernels and drivers are held, DKMS and toolkit not": (
        hold_changes(LOOSE, "n", held=True),
        (f"packages held: {NAMES}",),
    ),
    "holds of others are not listed": (
        hold_changes(replace(HELD, holds=Holds(tools=("apt-mark",))), "n", held=True),
        (),
    ),
    "nor released": (hold_changes(replace(HELD, holds=Holds(tools=("apt-mark",))), "n", held=False), ()),
}


@pytest.mark.parametrize(("changes", "descriptions"), CASES.values(), ids=CASES)
def test_changes_of_a_host(changes: Iterable[HostChange], descriptions: tuple[str, ...]) -> None:
    assert tuple(each.description for each in changes) == descriptions


def commands(changes: Iterable[HostChange]) -> list[str]:
    """Return the last line of each command, without the functions before it."""
    return [str(command).rsplit("alone && ", 1)[-1] for each in changes for command in each.commands]


def test_what_is_held_is_listed_before_and_taken_off_after() -> None:
    listed, hold = commands(hold_changes(LOOSE, "n", held=True))
    assert KERNEL.name in listed
    assert f"apt-mark -q hold {KERNEL.name} {PACKAGE.name}" in hold
    release, listed = commands(hold_changes(HELD, "n", held=False))
    assert f"apt-mark -q unhold {KERNEL.name} {PACKAGE.name}" in release
    assert "rm -f /var/lib/gpu-provision/held-packages" in listed


def test_package_that_is_gone_leaves_the_list() -> None:
    """An old kernel was removed: apt-mark could not release it, and a rule for unattended upgrades is no hold."""
    packages = replace(HELD.packages, installed=(replace(PACKAGE, held=True),), unattended_exceptions=("linux-",))
    (only,) = hold_changes(replace(HELD, packages=packages), "n", held=True)
    (command,) = commands([only])
    assert (only.description, KERNEL.name in command, PACKAGE.name in command) == ("", False, True)


@pytest.mark.parametrize("loaded", [True, False])
def test_links_are_made_at_once_only_with_a_loaded_driver(*, loaded: bool) -> None:
    """Otherwise udev makes them when one is."""
    changes = settings_changes(Settings(driver_loaded=loaded), sysctls={}, links=True)
    assert (f"sh {LINKS_SCRIPT}" in commands(changes)) is loaded


def test_pages_without_room_are_a_reason_to_reboot() -> None:
    assert "room for 3 of 16 huge pages of 1Gi" in shortages(pages(TRIED), {"1Gi": 16})[0]
    assert shortages(pages(replace(TRIED, pages={"1Gi": 2})), {"1Gi": 16}) == ()


def test_unknown_memory_refuses_no_huge_pages() -> None:
    assert impossible_hugepages(pages(replace(PAGES, memory=0)), "n", {"1Gi": 1000}) is None
    assert impossible_hugepages(pages(), "n", {"1Gi": 57}) is None
    assert impossible_hugepages(pages(), "n", {"1Gi": 58})


@pytest.mark.parametrize(
    ("record", "texts"),
    [
        (FRESH, ("linux-modules-extra-5.15.0-122-generic", "host_prerequisites.kernel_modules")),
        (replace(FRESH, system=System(id="rhel")), ("kernel-modules-extra-",)),
        (replace(FRESH, system=System(id="debian")), ("cloud kernel",)),
        (replace(FRESH, system=System(id="plan9")), ("kernel 5.15.0-122-generic", "take them off")),
        (with_modules(FRESH, directory=False), ("load modules on the machine whose kernel this is",)),
    ],
)
def test_missing_modules_name_the_package_of_the_system(record: HostRecord, texts: tuple[str, ...]) -> None:
    """A container runs with the kernel of its machine: a package or a reboot would change nothing."""
    finding = missing_modules(record, "t4-1", ["ipmi_msghandler", "b"])
    assert (finding.where, "ipmi_msghandler" in finding.what) == ("t4-1", True)
    assert all(text in finding.fix for text in texts)
    assert ("apt-get" in finding.fix) == (record.system.id in {"ubuntu", "debian"} and record.modules.directory)
