"""Reads a host from within the body of an operation."""

from __future__ import annotations

from collections.abc import Sequence

from pyinfra.context import host, state

from gpu_provision.facts.modules import canonical
from gpu_provision.facts.record import HostRecord
from gpu_provision.hosts.facts import GpuHost

RECORD = "gpu_provision_record"
"""Key of ``host.connector_data`` for the HostRecord that the host was judged by, before anything was changed."""


def read(sections: Sequence[str], modules: Sequence[str] = ()) -> HostRecord | None:
    """Read some sections of this host; while nothing is changed yet, what preflight has read will do."""
    known: HostRecord | None = None if state.is_executing else host.connector_data.get(RECORD)
    if known and known.read >= set(sections) and known.asked >= set(map(canonical, modules)):
        return known
    record: HostRecord | None = host.get_fact(GpuHost, modules=tuple(modules), sections=tuple(sections))
    return record
