"""A removal of cluster and hosts: the cluster first, and hosts only when nothing there needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_provision.api import cluster_phase
from gpu_provision.api.cluster_phase import Listen, as_a_look, ignore
from gpu_provision.api.phases import has_host_phase
from gpu_provision.api.results import StackRemoval
from gpu_provision.destroy import findings
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model.findings import Finding, RunFailed
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import DestroyResult
from gpu_provision.output import destroy as removal_view


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The part of a stack that a removal takes off, and the terms.

    Attributes:
        limit: Names of the hosts; empty for all. With any, the cluster is left out.
        hosts: Whether hosts take part.
        cluster: Whether the cluster takes part.
        crds, evict, timeout: As in `gpu_provision.destroy`.
    """

    inventory: Inventory
    limit: tuple[str, ...] = ()
    hosts: bool = True
    cluster: bool = True
    crds: bool = False
    evict: bool = False
    timeout: int = 300

    def look(self, listen: Listen) -> StackRemoval:
        """Return what `carry_out` would do, and what stands against it; nothing is written."""
        in_cluster = self._of_cluster(listen, dry_run=True) if self._has_cluster else None
        on_hosts = self._of_hosts(listen, dry_run=True)
        return StackRemoval(inventory=self.inventory.name, dry_run=True, hosts=on_hosts, cluster=in_cluster)

    def carry_out(self, listen: Listen, *, removed: Callable[[DestroyResult | None], None] = ignore) -> StackRemoval:
        """Remove it, and return how that ended, also if something is left, which holds the hosts back.

        Args:
            removed: Called with what went from the cluster, before hosts are changed.

        Raises:
            ProvisionError: As `gpu_provision.destroy` says.
        """
        in_cluster = self._gone(listen) if self._has_cluster else None
        removed(in_cluster)
        is_clear = in_cluster is None or removal_view.succeeded(in_cluster)
        on_hosts = self._of_hosts(listen, dry_run=False) if is_clear else NO_HOSTS
        return StackRemoval(
            inventory=self.inventory.name,
            dry_run=False,
            hosts=on_hosts,
            cluster=in_cluster,
            notes=() if is_clear else self._held_back(),
        )

    @property
    def _has_cluster(self) -> bool:
        return self.cluster and not self.limit

    @property
    def _has_hosts(self) -> bool:
        return self.hosts and has_host_phase(self.inventory)

    def _gone(self, listen: Listen) -> DestroyResult:
        try:
            return self._of_cluster(listen, dry_run=False)
        except RunFailed as failure:
            if not isinstance(failure.result, DestroyResult):
                raise
            return failure.result

    def _of_cluster(self, listen: Listen, *, dry_run: bool) -> DestroyResult:
        return cluster_phase.destroy(
            self.inventory, crds=self.crds, evict=self.evict, timeout=self.timeout, dry_run=dry_run, listen=listen
        )

    def _of_hosts(self, listen: Listen, *, dry_run: bool) -> HostsResult:
        if not self._has_hosts:
            return NO_HOSTS
        from gpu_provision.hosts.runner import teardown

        heard = as_a_look(listen) if dry_run else listen
        return teardown(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard)

    def _held_back(self) -> tuple[Finding, ...]:
        return (findings.hosts_held_back(),) if self._has_hosts else ()
