"""A removal: the stack goes from the cluster, then from its hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu_provision.api.jobs import Listen, as_a_look, has_host_phase, ignore, lock_waiter, raise_on_errors
from gpu_provision.api.results import StackRemoval
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model.findings import ForbiddenError, RunFailedError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import DestroyResult
from gpu_provision.model.progress import Event, State
from gpu_provision.output.findings import has_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyJob:
    """The part of a stack that a removal takes off, and the terms.

    Attributes:
        limit: Names of the hosts; empty for all. With any, the cluster is left out.
        hosts: Whether hosts take part.
        cluster: Whether the cluster takes part.
        crds, evict, timeout, lock_timeout: As in `gpu_provision.destroy`.
    """

    inventory: Inventory
    limit: tuple[str, ...] = ()
    hosts: bool = True
    cluster: bool = True
    crds: bool = False
    evict: bool = False
    timeout: int = 300
    lock_timeout: int = 0

    def look(self, listen: Listen) -> StackRemoval:
        """Return what `carry_out` would do, and what stands against it; nothing is written."""
        in_cluster = destroy(self, dry_run=True, listen=listen) if self._has_cluster else None
        on_hosts = self._tear_down(listen, dry_run=True)
        return StackRemoval(inventory=self.inventory.name, dry_run=True, hosts=on_hosts, cluster=in_cluster)

    def carry_out(self, listen: Listen, *, removed: Callable[[DestroyResult | None], None] = ignore) -> StackRemoval:
        """Remove it, and return how that ended, also if something is left, which holds the hosts back.

        Args:
            removed: Called with what went from the cluster, before hosts are changed.

        Raises:
            ProvisionError: As `gpu_provision.destroy` says.
        """
        from gpu_provision.destroy.plan import hosts_held_back

        in_cluster = None
        try:
            if self._has_cluster:
                call = lock_waiter(self.inventory, self.lock_timeout, listen)
                in_cluster = call(lambda: destroy(self, dry_run=False, listen=listen))
        except RunFailedError as failure:
            if not isinstance(failure.result, DestroyResult):
                raise
            in_cluster = failure.result
        removed(in_cluster)
        is_clear = in_cluster is None or not has_errors(in_cluster.findings)
        on_hosts = self._tear_down(listen, dry_run=False) if is_clear else NO_HOSTS
        notes = () if is_clear or not self._has_hosts else (hosts_held_back(),)
        name = self.inventory.name
        return StackRemoval(inventory=name, dry_run=False, hosts=on_hosts, cluster=in_cluster, notes=notes)

    @property
    def _has_cluster(self) -> bool:
        return self.cluster and not self.limit

    @property
    def _has_hosts(self) -> bool:
        return self.hosts and has_host_phase(self.inventory)

    def _tear_down(self, listen: Listen, *, dry_run: bool) -> HostsResult:
        if not self._has_hosts:
            return NO_HOSTS
        from gpu_provision.hosts.runner import teardown

        heard = as_a_look(listen) if dry_run else listen
        return teardown(self.inventory, limit=self.limit, dry_run=dry_run, listen=heard)


def destroy(job: DestroyJob, *, dry_run: bool, listen: Listen) -> DestroyResult:
    """Take the stack off the cluster, then audit what is left; a cluster without it costs no write.

    A resource that a controller looks after the stack by goes first, and the controller lets go of the stack.
    Raises what `gpu_provision.destroy` raises.
    """
    from gpu_provision.destroy import discovery, runner
    from gpu_provision.operator import client, remote_run
    from gpu_provision.rbac import permissions, review
    from gpu_provision.reconcile.session import Session

    def say(message: str) -> None:
        listen(Event(component="", node="", state=State.PROGRESSING, message=message))

    inventory = job.inventory
    cluster = Session(inventory).cluster
    terms = discovery.DestroyOptions(crds=job.crds, evict=job.evict, seconds=job.timeout)

    def discover() -> runner.DestroyRunner:
        found = discovery.discover(cluster, inventory, terms)
        return runner.DestroyRunner(cluster, inventory, found, terms, listen)

    work, stack = discover(), client.get_stack(cluster, inventory)
    if dry_run:
        return remote_run.add_to_removal(work.preview(), stack, dry_run=True)
    if stack and not work.refusal():
        remote_run.release_stack(cluster, inventory.name, seconds=job.timeout, say=say)
        work = discover()
    wanted = permissions.for_destroy_plan(inventory, work.plan.changes, evict=bool(work.plan.users))
    if work.plan.stages and (missing := review.missing_finding(cluster, inventory, wanted, "--destroy")):
        raise ForbiddenError(missing)
    done = remote_run.add_to_removal(work.execute(), stack)
    return raise_on_errors(replace(done, requests=cluster.requests))
