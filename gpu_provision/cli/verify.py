"""verify: acceptance tests of hosts and cluster."""

from __future__ import annotations

import click

import gpu_provision
from gpu_provision.cli import options
from gpu_provision.cli.display import shown_on_stderr
from gpu_provision.cli.options import loaded
from gpu_provision.cli.output import Output
from gpu_provision.model.findings import ExitCode


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
    inventory = loaded(file, kubeconfig=kubeconfig, context=context)
    with shown_on_stderr(out) as listen:
        found = gpu_provision.verify(
            inventory,
            hosts_only=not cluster,
            cluster_only=not hosts,
            limit=limit,
            tests=tests,
            junit=junit,
            listen=listen,
        )
    out.result(found.document(), found.text(out.style))
    return found.exit_code
