"""Facts about a host: everything that operations and preflight want to know, each in one shell command."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pyinfra.api.facts import FactBase
from pyinfra.context import host

from gpu_provision.hosts.errors import unreadable
from gpu_provision.hosts.facts import remains
from gpu_provision.hosts.facts.host import (
    ALL,
    HostRecord,
    command,
    parse,
)
from gpu_provision.hosts.facts.kernel import canonical
from gpu_provision.hosts.facts.remains import ToolkitRemains
from gpu_provision.model.findings import RunFailed


class GpuHost(FactBase[HostRecord | None]):
    """What a host is; None if it did not answer to the end."""

    asked_at = 0.0

    def command(self, modules: Sequence[str] = (), sections: Sequence[str] = ALL) -> str:
        """Return the shell command; see gpu_provision.hosts.facts.host for the sections."""
        self.asked_at = time.time()
        return command(modules, sections)

    def process(self, output: list[str]) -> HostRecord | None:
        """Read the command's output."""
        return parse(output, asked_at=self.asked_at, answered_at=time.time())


class GpuToolkitRemains(FactBase[ToolkitRemains | None]):
    """What the container toolkit has left on a host; None if it did not answer to the end."""

    def command(self, install_dir: str, configs: Sequence[str] = ()) -> str:
        """Return the shell command; see gpu_provision.hosts.facts.remains."""
        return remains.toolkit_command(install_dir, configs)

    def process(self, output: list[str]) -> ToolkitRemains | None:
        """Read the command's output."""
        return remains.parse_toolkit(output)


RECORD = "gpu_provision_record"
"""Key of ``host.connector_data`` for the HostRecord that the host was judged by; sections that an operation has changed
since are not in its ``read`` any more."""


def read_host(sections: Sequence[str], modules: Sequence[str] = ()) -> HostRecord | None:
    """Read some sections of this host; what preflight has read will do until an operation changes it."""
    known: HostRecord | None = host.connector_data.get(RECORD)
    if known and known.read >= set(sections) and known.asked >= set(map(canonical, modules)):
        return known
    record: HostRecord | None = host.get_fact(GpuHost, modules=tuple(modules), sections=tuple(sections))
    return record


def require_host(sections: Sequence[str], modules: Sequence[str] = ()) -> HostRecord:
    """Read some sections of this host, as `read_host` does. Raises RunFailed if it cannot be read."""
    record = read_host(sections, modules)
    if record is None:
        raise RunFailed(unreadable(host.name))
    return record


def forget_sections(*sections: str) -> None:
    """Have sections of this host read again when they are needed; all of them if none is named."""
    known: HostRecord | None = host.connector_data.get(RECORD)
    if known:
        left = known.read - set(sections) if sections else frozenset()
        host.connector_data[RECORD] = replace(known, read=left)
