"""``gpu-provision rbac``: the rights that an account needs."""

from __future__ import annotations

import click

from gpu_provision.model.codes import USAGE
from gpu_provision.cli import options
from gpu_provision.cli.options import loaded
from gpu_provision.cli.output import Output
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.output.documents import document
from gpu_provision.rbac.roles import RbacSubject


@click.command()
@options.inventory
@click.option("--user", "users", metavar="NAME", multiple=True, help="Give the rights to this user; may be repeated.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Give them to this group; may be repeated.")
@click.option(
    "--service-account",
    "--serviceaccount",
    "accounts",
    metavar="NAMESPACE:NAME",
    multiple=True,
    help="Give them to this service account; may be repeated.",
)
@click.option("--read-only", is_flag=True, help="Only what looks need: status, plan, drift, history.")
@click.option("--destroy", is_flag=True, help="What destroy needs, instead of what apply needs.")
@click.option("--adopt", is_flag=True, help="What adopt needs: all that apply needs, and more.")
@click.option(
    "--operator",
    is_flag=True,
    help="What apply needs where a controller looks after the stack, instead of what it needs by itself.",
)
@options.speaking
def rbac(  # noqa: PLR0913 - one argument per option
    *,
    file: str | None,
    users: tuple[str, ...],
    groups: tuple[str, ...],
    accounts: tuple[str, ...],
    read_only: bool,
    destroy: bool,
    adopt: bool,
    operator: bool,
    out: Output,
) -> None:
    """Print the least rights that an account needs for an inventory, without asking any cluster.

    For every command but destroy and adopt: their rights are printed by --destroy and --adopt.

    An administrator applies them before the first run:

    \b
    gpu-provision rbac -i prod --service-account ci:gpu-provision | kubectl apply -f -

    A ClusterRole for what is not in a namespace, a Role in each of the stack's namespaces, and bindings to the users,
    groups and service accounts that are named; without any, roles alone.
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if read_only + destroy + adopt + operator > 1:
        message = "--read-only, --destroy, --adopt and --operator exclude each other."
        raise click.UsageError(message)
    from gpu_provision.api.records import rbac as roles
    from gpu_provision.output import yaml_text

    subjects = [
        *(RbacSubject("User", name) for name in users),
        *(RbacSubject("Group", name) for name in groups),
        *map(_account, accounts),
    ]
    chosen = {"read_only": read_only, "destroy": destroy, "adopt": adopt, "operator": operator}
    manifests = roles(loaded(file), subjects, **chosen)
    if not subjects:
        out.note("Roles only: bind them with --user, --group or --service-account.")
    out.result(document("rbac", manifests=manifests), yaml_text.stream(manifests))


def _account(word: str) -> RbacSubject:
    """Return ``NAMESPACE:NAME`` as a subject. Raises UsageError."""
    namespace, _, name = word.partition(":")
    if namespace and name and ":" not in name:
        return RbacSubject("ServiceAccount", name, namespace)
    raise UsageError(
        Finding(
            code=USAGE,
            where=f"--service-account {word}",
            what="a service account is named by its namespace and its name",
            fix="--service-account NAMESPACE:NAME",
        )
    )
