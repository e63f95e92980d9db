"""The driver image that a host would get, and asking for it."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from gpu_provision.hosts.checks import images
from gpu_provision.hosts.checks.judge import resolve_driver
from gpu_provision.hosts.facts.gpus import Driver
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.kernel import Certainty, Kernel, Kernels, NextKernel
from gpu_provision.hosts.facts.system import System
from gpu_provision.model.hosts import Expectation, ImageAvailability, ImageLookup

HOST = HostFacts(system=System(id="rocky", version="9.5"), kernel=Kernel(architecture="aarch64"))
EXPECTED = Expectation(
    node="a",
    pool="p",
    gpu_model="T4",
    gpu_count=1,
    driver_image="nvcr.io/nvidia/driver",
    driver_version="580.95.05",
    ask_registry=True,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Answer every question with yes, and keep them."""
    questions: list[tuple[str, str]] = []

    def ask(reference: str, architecture: str) -> ImageLookup:
        questions.append((reference, architecture))
        return ImageLookup(reference, ImageAvailability.PRESENT)

    images._look_up.cache_clear()
    monkeypatch.setattr(images, "look_up_image", ask)
    return questions


def test_image_is_that_of_the_hosts_own_system(asked: list[tuple[str, str]]) -> None:
    """Not of the declared one; the kind of processor in the registry's words."""
    answer = images.look_up_driver_image(EXPECTED, HOST)
    assert answer
    assert asked == [("nvcr.io/nvidia/driver:580.95.05-rocky9", "arm64")]


def test_hundred_hosts_ask_once(asked: list[tuple[str, str]]) -> None:
    threads = [threading.Thread(target=images.look_up_driver_image, args=(EXPECTED, HOST)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1


@pytest.mark.parametrize(
    "expected",
    [replace(EXPECTED, ask_registry=False), replace(EXPECTED, gpu_count=0), replace(EXPECTED, driver_image="")],
)
def test_nothing_is_asked_in_vain(asked: list[tuple[str, str]], expected: Expectation) -> None:
    """Not offline, not for machines without a GPU, not where the driver belongs to the host."""
    assert images.look_up_driver_image(expected, HOST) is None
    assert not asked


def test_host_of_an_unknown_system_has_no_image(asked: list[tuple[str, str]]) -> None:
    assert images.look_up_driver_image(EXPECTED, HostFacts()) is None
    assert not asked


def test_precompiled_images_are_of_the_kernel(asked: list[tuple[str, str]]) -> None:
    """Also of the kernel that boots next; none is asked for twice."""
    expected = replace(EXPECTED, driver_version="580", driver_precompiled=True)
    following = NextKernel("5.14.0-503.el9.aarch64", Certainty.KNOWN, "grubby")
    running = replace(HOST, kernel=replace(HOST.kernel, running="5.14.0-427.el9.aarch64"))
    for host in (running, replace(running, kernels=Kernels(next=following))):
        images.look_up_driver_image(expected, host)
        images.look_up_next_image(expected, host)
    tags = [reference.partition(":")[2] for reference, _ in asked]
    assert tags == ["580-5.14.0-427.el9.aarch64-rocky9", "580-5.14.0-503.el9.aarch64-rocky9"]
    assert images.look_up_next_image(EXPECTED, replace(HOST, kernels=Kernels(next=following))) is None


def test_digest_takes_no_suffix() -> None:
    assert (
        images.driver_image_reference(replace(EXPECTED, driver_version="sha256:ab"), HOST)
        == "nvcr.io/nvidia/driver@sha256:ab"
    )


def test_host_that_keeps_its_own_driver_needs_no_image(asked: list[tuple[str, str]]) -> None:
    """With ``driver.enabled: auto`` the host decides, so no registry is asked before it was read."""
    auto = replace(EXPECTED, driver_auto=True)
    own = replace(HOST, driver=Driver(loaded="550.90.07", programs=("/usr/bin/nvidia-smi",)))
    assert images.look_up_driver_image(resolve_driver(auto, own), own) is None
    assert asked == []
    assert images.look_up_driver_image(resolve_driver(auto, HOST), HOST)
