"""destroy: takes a stack off cluster and hosts."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from gpu_provision.cli import confirmation, options
from gpu_provision.cli.account import Account, page_at
from gpu_provision.cli.display import shown_on_stderr
from gpu_provision.cli.inventory_file import loaded
from gpu_provision.cli.limits import limited
from gpu_provision.cli.output import Output, write
from gpu_provision.cli.work import Listen, as_a_look
from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.findings import ExitCode, Finding, RunFailed, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.removal import RemovalResult
from gpu_provision.removal import telling
from gpu_provision.report import findings as findings_view
from gpu_provision.report import hosts as hosts_view
from gpu_provision.report import removal as removal_view
from gpu_provision.report.documents import document


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be removed, and under which terms.

    Attributes:
        limit: Names of the hosts; empty for all.
        hosts: Whether hosts take part.
        cluster: Whether the cluster takes part.
    """

    inventory: Inventory
    limit: tuple[str, ...]
    hosts: bool
    cluster: bool
    crds: bool
    evict: bool
    timeout: int


@click.command()
@options.inventory
@options.kubeconfig
@options.context
@options.hosts_limit
@options.phases
@click.option("--dry-run", is_flag=True, help="Show what would go and what would stay, and change nothing.")
@click.option(
    "--evict", is_flag=True, help="Evict pods that use GPUs, as their budgets allow. Without it they forbid it."
)
@click.option("--crds", is_flag=True, help="CustomResourceDefinitions go, too, unless others have objects of them.")
@options.ask_sudo_password
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    default=300,
    show_default=True,
    help="How long each stage may take.",
)
@options.yes
@options.report
@options.speaking
def destroy(  # noqa: PLR0913 - one argument per option
    *,
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    limit: str | None,
    hosts: bool,
    cluster: bool,
    dry_run: bool,
    evict: bool,
    crds: bool,
    timeout: int,
    yes: bool,
    report: str | None,
    out: Output,
) -> ExitCode:
    """Take everything of an inventory off the cluster and its hosts, and look for what is left.

    The cluster comes first: access to GPUs, components in reverse order, labels and cordons of nodes, the rest. Then
    hosts: files as they were before. What others made, or have taken over, stays and is told.
    """
    inventory = loaded(file, kubeconfig=kubeconfig, context=context)
    names = limited(inventory, limit)
    wish = Wish(
        inventory=inventory,
        limit=names,
        hosts=hosts and any(inventory.prerequisites_of(node).enabled for node in inventory.nodes),
        cluster=cluster and not names,
        crds=crds,
        evict=evict,
        timeout=timeout,
    )
    page = page_at(report, dry_run=dry_run)
    if dry_run:
        return _show(wish, out, *_previewed(wish, out), dry_run=True)
    if confirmation.is_needed(inventory, yes=yes) and not _agreed(wish, out):
        out.note("Nothing was changed.")
        return ExitCode.FAILED
    account = Account(inventory=inventory, page=page, command="destroy")
    with account.kept(out):
        with shown_on_stderr(out) as listen:
            heard = account.heard_by(listen)
            account.removal = _removed(wish, heard) if wish.cluster else None
            account.hosts = _torn_down(wish, heard, dry_run=False) if _is_clear(account.removal) else None
        account.held_back = _held_back(wish, account.removal)
        return _show(wish, out, account.removal, account.hosts, dry_run=False)


def _previewed(wish: Wish, out: Output) -> tuple[RemovalResult | None, HostsResult | None]:
    with shown_on_stderr(out) as listen:
        on_cluster = _looked(wish) if wish.cluster else None
        return on_cluster, _torn_down(wish, listen, dry_run=True)


def _agreed(wish: Wish, out: Output) -> bool:
    """Show what would go and ask; nothing to do needs no answer, and what is refused no question."""
    confirmation.require_terminal(out, look="destroy --dry-run")
    on_cluster, on_hosts = _previewed(wish, out)
    if _show(wish, out, on_cluster, on_hosts, dry_run=True) is not ExitCode.OK:
        return False
    changed = len(on_hosts.changed) if on_hosts else 0
    if not (changed or (on_cluster and on_cluster.changes)):
        return True
    target = confirmation.target(on_cluster.cluster if on_cluster else "", changed)
    return confirmation.given(f"Remove all of this from {target}?")


def _looked(wish: Wish) -> RemovalResult:
    from gpu_provision import library

    return library.destroy(wish.inventory, crds=wish.crds, evict=wish.evict, dry_run=True)


def _removed(wish: Wish, listen: Listen) -> RemovalResult:
    """Return how the removal ended, also if something is left."""
    from gpu_provision import library

    try:
        return library.destroy(wish.inventory, crds=wish.crds, evict=wish.evict, timeout=wish.timeout, listen=listen)
    except RunFailed as failure:
        if not isinstance(failure.result, RemovalResult):
            raise
        return failure.result


def _is_clear(on_cluster: RemovalResult | None) -> bool:
    """Whether nothing in the cluster needs the hosts as they are any more."""
    return on_cluster is None or removal_view.succeeded(on_cluster)


def _held_back(wish: Wish, on_cluster: RemovalResult | None) -> tuple[Finding, ...]:
    return (telling.hosts_held_back(),) if wish.hosts and not _is_clear(on_cluster) else ()


def _torn_down(wish: Wish, listen: Listen, *, dry_run: bool) -> HostsResult | None:
    if not wish.hosts:
        return None
    from gpu_provision.hosts.run import teardown

    return teardown(wish.inventory, limit=wish.limit, dry_run=dry_run, listen=as_a_look(listen) if dry_run else listen)


def _show(
    wish: Wish, out: Output, on_cluster: RemovalResult | None, on_hosts: HostsResult | None, *, dry_run: bool
) -> ExitCode:
    found: tuple[Finding, ...] = (
        *(on_cluster.findings if on_cluster else ()),
        *(() if dry_run else _held_back(wish, on_cluster)),
        *((*on_hosts.errors, *on_hosts.findings) if on_hosts else ()),
    )
    result = on_cluster or RemovalResult(cluster="not asked")
    name = wish.inventory.name
    parts = [hosts_view.text(on_hosts, out.style, done=not dry_run)] if on_hosts else []
    parts += [removal_view.text(on_cluster, name, out.style, dry_run=dry_run)] if on_cluster else []
    told = hosts_view.document(on_hosts) if on_hosts else []
    own = removal_view.document(result, name)
    out.result(document("destroy", found, inventory=name, dry_run=dry_run, hosts=told, **own), "\n\n".join(parts))
    if not out.json:
        write(sys.stderr, findings_view.text(found, out.error_style))
    failed = any(each.severity is Severity.ERROR for each in found) or bool(on_hosts and on_hosts.failed)
    return ExitCode.FAILED if failed else ExitCode.OK
