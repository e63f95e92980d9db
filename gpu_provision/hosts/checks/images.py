"""What the registry says about a node's driver image."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from threading import Lock

from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.images.registry import look_up_image
from gpu_provision.inventory import hardware
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding
from gpu_provision.model.hosts import Expectation, ImageAnswer, ImageState

_NVIDIAS = "/nvidia/driver"
"""End of the names of NVIDIA's images, also where a mirror has them."""


def driver_image(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver image that is absent or unknown."""
    answer = subject.image
    match answer.state if answer else ImageState.PRESENT:
        case ImageState.ABSENT:
            code, what = codes.IMAGE_ABSENT, "there is no driver image {image}"
            consequence = "the driver pod stays in ImagePullBackOff"
            fix = f"set {subject.driver_key}.version to one that exists for this system, or mirror the image"
        case ImageState.OTHER_ARCHITECTURE:
            machine = subject.host.kernel.architecture
            code, what = codes.IMAGE_ARCHITECTURE, f"the driver image {{image}} does not exist for {machine}"
            consequence = 'the driver pod fails with "no match for platform" or "exec format error"'
            fix = f"set {subject.driver_key}.version to one with this platform, or mirror all platforms of the image"
        case ImageState.REFUSED | ImageState.UNREACHABLE:
            code, what = codes.IMAGE_UNKNOWN, "it is not known whether the driver image {image} exists"
            consequence = "if it does not, the driver pod stays in ImagePullBackOff"
            fix = (
                "docker login for this registry, if it wants credentials; where this machine cannot reach it, --offline"
                " or preflight: {registry: false}"
            )
        case _:
            return
    tell = subject.warning if code == codes.IMAGE_UNKNOWN else subject.error
    evidence = answer.evidence if answer else ""
    image = answer.reference if answer else ""
    yield tell(code, what.format(image=image), evidence=evidence, consequence=consequence, fix=fix)


def no_images_for_system(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host whose own system NVIDIA makes no driver images for, where no registry was asked."""
    expected, system = subject.expected, subject.host.system.name
    of_nvidia = expected.driver_image.endswith(_NVIDIAS)
    if subject.image is not None or not (of_nvidia and system):
        return
    versions = ", ".join(system.id + version for version in hardware.images().get(system.id, ()))
    known = f"known: {versions}" if versions else "own images are as good"
    if hardware.has_own_driver(system.id) or not hardware.has_images(system):
        yield subject.warning(
            codes.IMAGE_ABSENT,
            f"no driver image is known for {system.tag}",
            evidence=f"/etc/os-release: {subject.host.system.title or system.tag}; no registry was asked",
            consequence="the driver pod stays in ImagePullBackOff",
            fix=f"install the driver on the host and set {subject.driver_key}.enabled: false, or see whether there is"
            f" one by now: gpu-provision preflight without --offline; {known}",
        )


_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def look_up_driver_image(expected: Expectation, record: HostRecord) -> ImageAnswer | None:
    """Return what the registry says; None if it is not to be asked, or if there is nothing to ask for."""
    reference = driver_image_reference(expected, record)
    if not (expected.ask_registry and expected.gpu_count and reference):
        return None
    machine = record.kernel.architecture
    with _lock(reference):
        return _look_up(reference, _ARCHITECTURES.get(machine, machine))


def driver_image_reference(expected: Expectation, record: HostRecord) -> str:
    """Return the driver image of a host; empty if it gets none. A digest takes no suffix."""
    system = record.system.name
    if not expected.driver_image or system is None:
        return ""
    if expected.driver_version.startswith("sha256:"):
        return f"{expected.driver_image}@{expected.driver_version}"
    return f"{expected.driver_image}:{expected.driver_version}-{system.tag}"


@cache
def _lock(_reference: str) -> Lock:
    """Return the lock of an image: a hundred hosts that want it wait for the one that asks."""
    return Lock()


@cache
def _look_up(reference: str, architecture: str) -> ImageAnswer:
    return look_up_image(reference, architecture)
