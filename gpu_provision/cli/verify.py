"""verify: acceptance tests of hosts and cluster."""

from __future__ import annotations

import click

from gpu_provision.cli import options
from gpu_provision.cli.display import shown_on_stderr
from gpu_provision.cli.inventory_file import chosen, loaded
from gpu_provision.cli.limits import limited
from gpu_provision.cli.output import Output
from gpu_provision.model.findings import ExitCode
from gpu_provision.report import verify as verify_view
from gpu_provision.report.documents import document


@click.command()
@click.argument("tests", nargs=-1, type=click.Path(exists=True))
@options.inventory
@options.kubeconfig
@options.context
@click.option("--limit", metavar="HOST[,HOST...]", help="Only these nodes: names, patterns, groups, or @FILE.")
@options.phases
@click.option("--junit", metavar="FILE", default="", help="Write JUnit XML there, too.")
@options.speaking
def verify(  # noqa: PLR0913 - one argument per option
    *,
    tests: tuple[str, ...],
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    limit: str | None,
    hosts: bool,
    cluster: bool,
    junit: str,
    out: Output,
) -> ExitCode:
    """Run acceptance tests against hosts and cluster, and change nothing.

    They look for themselves: hosts are asked over SSH by testinfra, the cluster by plain GET requests. TESTS are
    files or folders with pytest tests of your own, which run beside; docs/verify.md shows how to write them. It needs
    pip install 'gpu-provision[verify]'.
    """
    from gpu_provision.verify import run

    inventory = loaded(file, kubeconfig=kubeconfig, context=context)
    wanted = run.Wanted(
        inventory=str(chosen(file)),
        kubeconfig=kubeconfig,
        context=context,
        nodes=limited(inventory, limit),
        hosts=hosts,
        cluster=cluster,
        tests=tests,
        junit=junit,
    )
    with shown_on_stderr(out) as listen:
        found = run.verify(wanted, listen)
    out.result(
        document("verify", inventory=inventory.name, **verify_view.document(found)), verify_view.text(found, out.style)
    )
    return found.exit_code
