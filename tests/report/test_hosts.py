"""The host phase's view."""

from __future__ import annotations

from types import ModuleType

from gpu_provision.report import hosts


def test_equal_hosts_are_one_block(samples: ModuleType) -> None:
    """A fleet of equal machines takes two lines."""
    assert hosts.text(samples.HOSTS).splitlines() == [
        "~ gpu-01..03  8 GPUs",
        "    load kernel module ipmi_msghandler",
        "= t4-1  1 GPU",
        "! t4-2",
        "    cannot be reached",
    ]
