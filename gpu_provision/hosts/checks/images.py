"""What the registry says about a node's driver image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from threading import Lock

from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.inventory import hardware
from gpu_provision.model.findings import Finding
from gpu_provision.model.hosts import Expectation, ImageAvailability, ImageLookup
from gpu_provision.registry import look_up_image

_NVIDIAS = "/nvidia/driver"
"""End of the names of NVIDIA's images, also where a mirror has them."""


def driver_image(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver image that is absent or unknown."""
    answer = subject.image
    if answer and answer.state is not ImageAvailability.PRESENT:
        is_known = answer.state in {ImageAvailability.ABSENT, ImageAvailability.OTHER_ARCHITECTURE}
        kind = answer.state.value if is_known else "unknown"
        yield subject.finding(f"image.{kind}", answer.evidence, image=answer.reference)


def no_next_image(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a kernel that boots next, for which there is no precompiled driver."""
    answer, following = subject.next_image, subject.host.kernels.next
    if answer and following and answer.state in {ImageAvailability.ABSENT, ImageAvailability.OTHER_ARCHITECTURE}:
        words = {"image": answer.reference, "release": following.release, "source": following.source}
        yield subject.finding("no_next_image", answer.evidence, **words)


def no_images_for_system(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host whose own system NVIDIA makes no driver images for, where no registry was asked."""
    expected, system = subject.expected, subject.host.system.name
    of_nvidia = expected.driver_image.endswith(_NVIDIAS)
    if subject.image is not None or not (of_nvidia and system):
        return
    versions = ", ".join(system.id + version for version in hardware.images().get(system.id, ()))
    known = f"known: {versions}" if versions else "own images are as good"
    if hardware.has_own_driver(system.id) or not hardware.has_images(system):
        title = subject.host.system.title or system.tag
        yield subject.finding("no_images_for_system", tag=system.tag, title=title, known=known)


_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def look_up_driver_image(expected: Expectation, record: HostFacts) -> ImageLookup | None:
    """Return what the registry says; None if it is not to be asked, or if there is nothing to ask for."""
    reference = driver_image_reference(expected, record)
    if not (expected.ask_registry and expected.has_gpu and reference):
        return None
    machine = record.kernel.architecture
    with _lock(reference):
        return _look_up(reference, _ARCHITECTURES.get(machine, machine))


def look_up_next_image(expected: Expectation, record: HostFacts) -> ImageLookup | None:
    """Return what the registry says of the precompiled image for another kernel that boots next; None without one."""
    following = record.kernels.next
    if not expected.driver_precompiled or following is None or following.release == record.kernel.running:
        return None
    return look_up_driver_image(expected, replace(record, kernel=replace(record.kernel, running=following.release)))


def driver_image_reference(expected: Expectation, record: HostFacts) -> str:
    """Return the driver image of a host; empty if it gets none. A digest takes no suffix."""
    system, kernel = record.system.name, record.kernel.running if expected.driver_precompiled else ""
    if not expected.driver_image or system is None or (expected.driver_precompiled and not kernel):
        return ""
    if expected.driver_version.startswith("sha256:"):
        return f"{expected.driver_image}@{expected.driver_version}"
    return f"{expected.driver_image}:{'-'.join(filter(None, (expected.driver_version, kernel, system.tag)))}"


@cache
def _lock(_reference: str) -> Lock:
    """Return the lock of an image: a hundred hosts that want it wait for the one that asks."""
    return Lock()


@cache
def _look_up(reference: str, architecture: str) -> ImageLookup:
    return look_up_image(reference, architecture)
