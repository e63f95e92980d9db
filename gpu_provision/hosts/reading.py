"""Reads a host from within the body of an operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyinfra.context import host

from gpu_provision.facts.modules import canonical
from gpu_provision.facts.record import HostRecord
from gpu_provision.hosts.facts import GpuHost

RECORD = "gpu_provision_record"
"""Key of ``host.connector_data`` for the HostRecord that the host was judged by; sections that an operation has changed
since are not in its ``read`` any more."""


def read(sections: Sequence[str], modules: Sequence[str] = ()) -> HostRecord | None:
    """Read some sections of this host; what preflight has read will do until an operation changes it."""
    known: HostRecord | None = host.connector_data.get(RECORD)
    if known and known.read >= set(sections) and known.asked >= set(map(canonical, modules)):
        return known
    record: HostRecord | None = host.get_fact(GpuHost, modules=tuple(modules), sections=tuple(sections))
    return record


def forget(*sections: str) -> None:
    """Read sections of this host anew when somebody asks for them; all of them if none is named."""
    known: HostRecord | None = host.connector_data.get(RECORD)
    if known:
        left = known.read - set(sections) if sections else frozenset()
        host.connector_data[RECORD] = replace(known, read=left)
