"""What keeps a package from being replaced."""

from __future__ import annotations

import pytest

from gpu_provision.hosts.facts.packages import Package, Packages


@pytest.mark.parametrize(
    ("lock", "name", "kept"),
    [
        ("kernel*", "kernel-core", True),
        ("nvidia-driver-3:550.54.15-1.el9.*", "nvidia-driver", True),
        ("nvidia-driver-cuda-550.54.15-1.el9.*", "nvidia-driver-cuda", True),
        ("0:kernel-5.14.0-427.el9.x86_64", "kernel", True),
        ("nvidia-driver-3:550.54.15-1.el9.*", "nvidia-driver-libs", False),
        ("kernel", "kernel-core", False),
        ("!kernel-core-0:5.14.0-427.el9.*", "kernel-core", False),
    ],
)
def test_locks_name_packages_with_or_without_versions(lock: str, name: str, *, kept: bool) -> None:
    """As dnf's versionlock writes them, with an epoch, and as globs; "!" shuts out one version only."""
    assert Packages(locks=(lock,)).is_kept(Package(name, "1")) is kept


@pytest.mark.parametrize(
    ("rule", "kept"), [("linux-", True), ("nvidia", False), ("linux-image-.*generic$", True), ("linux(", False)]
)
def test_exceptions_of_unattended_upgrades_match_from_the_start(rule: str, *, kept: bool) -> None:
    """Their blacklist holds regular expressions; a broken one is taken for a part of the name."""
    packages = Packages(unattended_exceptions=(rule,))
    assert packages.is_kept(Package("linux-image-5.15.0-122-generic", "1")) is kept


def test_package_on_hold_is_kept() -> None:
    """apt-mark hold."""
    assert Packages().is_kept(Package("nvidia-driver-535", "1", held=True))
