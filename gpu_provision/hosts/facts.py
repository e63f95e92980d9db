"""Facts about a host: everything that operations and preflight want to know, each in one shell command."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyinfra.api.facts import FactBase

from gpu_provision.facts import toolkit_remains
from gpu_provision.facts.record import ALL, HostRecord, command, parse
from gpu_provision.facts.toolkit_remains import ToolkitRemains


class GpuHost(FactBase[HostRecord | None]):
    """What a host is; None if it did not answer to the end."""

    asked_at = 0.0

    def command(self, modules: Sequence[str] = (), sections: Sequence[str] = ALL) -> str:
        """Return the shell command; see gpu_provision.facts.record for the sections."""
        self.asked_at = time.time()
        return command(modules, sections)

    @staticmethod
    def default() -> HostRecord | None:
        """Return None: nothing is known."""
        return None

    def process(self, output: list[str]) -> HostRecord | None:
        """Read the command's output."""
        return parse(output, asked_at=self.asked_at, answered_at=time.time())


class GpuToolkitRemains(FactBase[ToolkitRemains | None]):
    """What the container toolkit has left on a host; None if it did not answer to the end."""

    def command(self, install_dir: str, configs: Sequence[str] = ()) -> str:
        """Return the shell command; see gpu_provision.facts.toolkit_remains."""
        return toolkit_remains.command(install_dir, configs)

    @staticmethod
    def default() -> ToolkitRemains | None:
        """Return None: nothing is known."""
        return None

    def process(self, output: list[str]) -> ToolkitRemains | None:
        """Read the command's output."""
        return toolkit_remains.parse(output)
