"""What is expected of a host once it has been read, where the inventory leaves it to the host."""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.facts.record import HostRecord
from gpu_provision.model.expectation import Expectation


def decided(expected: Expectation, host: HostRecord) -> Expectation:
    """Return what is expected of this very host: with ``driver.enabled: auto`` its own driver, if that is usable."""
    if not (expected.driver_auto and host.driver.usable):
        return expected
    return replace(expected, driver_container=False, driver_image="")
