"""What one plan or apply is about: which hosts, which components; and the calls that do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu_provision.cli import codes
from gpu_provision.cli.overrides import known
from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.drift import Drift
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import Event, RunResult, State

Listen = Callable[[Event], None]

_READING = Event(component="", node="", state=State.PROGRESSING, message="reading hosts")


def as_a_look(listen: Listen) -> Listen:
    """Return a listener for hosts that are only read: none of them makes progress or gets ready, but some may fail."""
    return lambda event: listen(event if event.state is State.FAILED else _READING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The part of an inventory that a command is to look at.

    Attributes:
        limit: Names of the nodes; empty for all.
        targets: Names of the components as the user wrote them; empty for all.
        hosts: Whether the host phase takes part.
        cluster: Whether the cluster phase takes part.
        back_to: Number of the run whose inventory this is; 0 if it is no rollback.
        command: Whose JSON document is printed.
        known: What a reader should know besides.
        take_over: Whether fields of the stack's resource are taken over from whoever else has set them.
        hold: Told what is going to be changed in the cluster; raises if that is not what was agreed to.
    """

    inventory: Inventory
    limit: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    hosts: bool = True
    cluster: bool = True
    back_to: int = 0
    command: str = "apply"
    known: tuple[Finding, ...] = ()
    take_over: bool = False
    hold: Callable[[Plan], None] = lambda _: None

    def prepare(self, listen: Listen, *, dry_run: bool) -> HostsResult | None:
        """Make the hosts as declared, or only look with ``dry_run``; None if they take no part."""
        self._components()
        enabled = any(self.inventory.prerequisites_of(node).enabled for node in self.inventory.nodes)
        if not (self.hosts and enabled):
            return None
        from gpu_provision.hosts.run import prepare

        guard = None
        if self.inventory.may_reboot:
            from gpu_provision.engine.guard import NodeGuard

            guard = NodeGuard(self.inventory)
        heard = as_a_look(listen) if dry_run else listen
        return prepare(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard, guard=guard)

    def _components(self) -> frozenset[str]:
        """Return the targets as component names. Raises UsageError, also before the first host is asked."""
        if not self.targets:
            return frozenset()
        if not self.cluster:
            what = "--hosts-only leaves the cluster alone, and with it every component"
            fix = "leave one of the two out"
            raise UsageError(Finding(code=codes.USAGE, where="--target", what=what, fix=fix))
        from gpu_provision.components import requirements

        return known(self.targets, requirements(self.inventory))

    def plan(self, on_hosts: HostsResult | None, *, offline: bool = False) -> Plan:
        """Return what differs in the cluster, with what was found on hosts; an empty plan if it takes no part."""
        if not self.cluster:
            return self._nothing()
        from gpu_provision import library

        return library.plan(
            self.inventory,
            offline=offline,
            hosts=on_hosts,
            targets=self._components(),
            limit=self.limit,
            take_over=self.take_over,
        )

    def cluster_id(self) -> str:
        """Return what no other cluster has; empty if none takes part."""
        if not self.cluster:
            return ""
        from gpu_provision import library

        return library.cluster_id(self.inventory)

    def drift(self, on_hosts: HostsResult | None) -> Drift:
        """Return what in the cluster is not as declared; nothing if it takes no part."""
        if not self.cluster:
            nothing = self._nothing()
            return Drift(inventory=nothing.inventory, release=nothing.release, cluster=nothing.cluster, differences=())
        from gpu_provision import library

        return library.drift(self.inventory, hosts=on_hosts)

    def apply(
        self, listen: Listen, on_hosts: HostsResult | None, *, planned: Callable[[Plan], None] = lambda _: None
    ) -> RunResult:
        """Make the cluster as declared, with what was found on hosts; ``planned`` is told what is to change.

        Raises RunFailed if something is not as declared in the end.
        """
        from gpu_provision import library

        def told(plan: Plan) -> None:
            planned(plan)
            self.hold(plan)

        began = time.monotonic()
        result = library.apply(
            self.inventory,
            listen=listen,
            planned=told,
            hosts=on_hosts,
            back_to=self.back_to,
            targets=self._components(),
            limit=self.limit,
            take_over=self.take_over,
        )
        return replace(result, seconds=time.monotonic() - began)

    def put_hosts_on_record(self, on_hosts: HostsResult | None) -> tuple[Finding, ...]:
        """Put a run on record that leaves the cluster alone; return a warning about what kept it from being there."""
        if self.cluster or on_hosts is None:
            return ()
        from gpu_provision import library

        return library.put_hosts_on_record(self.inventory, on_hosts, back_to=self.back_to)[1]

    def _nothing(self) -> Plan:
        return Plan(
            inventory=self.inventory.name,
            release=self.inventory.release,
            cluster="not asked",
            components=(),
            changes=(),
        )
