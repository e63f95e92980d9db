"""The driver image that a host would get, asked of its registry: once per image, whatever the number of hosts."""

from __future__ import annotations

from functools import cache
from threading import Lock

from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.images.registry import look_up_image
from gpu_provision.model.hosts import Expectation, ImageAnswer

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def answer(expected: Expectation, record: HostRecord) -> ImageAnswer | None:
    """Return what the registry says; None if it is not to be asked, or if there is nothing to ask for."""
    reference = reference_of(expected, record)
    if not (expected.ask_registry and expected.gpu_count and reference):
        return None
    machine = record.kernel.architecture
    with _lock(reference):
        return _asked(reference, _ARCHITECTURES.get(machine, machine))


def reference_of(expected: Expectation, record: HostRecord) -> str:
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
def _asked(reference: str, architecture: str) -> ImageAnswer:
    return look_up_image(reference, architecture)
