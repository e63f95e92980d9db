"""What one plan or apply is about: which hosts, which components; and the calls that do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu_provision.cli.overrides import known, narrowed
from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import Event, RunResult

Listen = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The part of an inventory that a command is to look at.

    Attributes:
        limit: Names of the hosts; empty for all.
        targets: Names of the components as the user wrote them; empty for all.
        hosts: Whether the host phase takes part.
        cluster: Whether the cluster phase takes part.
    """

    inventory: Inventory
    limit: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    hosts: bool = True
    cluster: bool = True

    def prepare(self, listen: Listen, *, dry_run: bool) -> HostsResult | None:
        """Make the hosts as declared, or only look with ``dry_run``; None if they take no part."""
        self._refuse_unknown_targets()
        enabled = any(self.inventory.prerequisites_of(node).enabled for node in self.inventory.nodes)
        if not (self.hosts and enabled):
            return None
        from gpu_provision.hosts.run import prepare

        return prepare(self.inventory, limit=self.limit, dry_run=dry_run, listen=listen)

    def _refuse_unknown_targets(self) -> None:
        """Before the first host is asked. Raises UsageError."""
        if self.targets:
            from gpu_provision.components import requirements

            known(self.targets, requirements(self.inventory))

    def plan(self, *, offline: bool = False) -> Plan:
        """Return what differs in the cluster; an empty plan if the cluster takes no part."""
        if not self.cluster:
            return self._nothing()
        from gpu_provision import library

        found = library.plan(self.inventory, offline=offline)
        return narrowed(found, known(self.targets, found.components))

    def apply(self, listen: Listen) -> RunResult:
        """Make the cluster as declared. Raises RunFailed if something is not as declared in the end."""
        from gpu_provision import library

        began = time.monotonic()
        result = library.apply(self.inventory, listen=listen)
        return replace(result, seconds=time.monotonic() - began)

    def _nothing(self) -> Plan:
        return Plan(
            inventory=self.inventory.name,
            release=self.inventory.release,
            cluster="not asked",
            components=(),
            changes=(),
        )
