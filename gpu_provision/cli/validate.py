"""The commands without a cluster or hosts: validate, render, schema, rbac, explain, completion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from gpu_provision.cli import options
from gpu_provision.cli.options import find_inventory, load_inventory
from gpu_provision.cli.output import Output, report_write_errors
from gpu_provision.model import codes
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.text import pluralize
from gpu_provision.output import findings as findings_view
from gpu_provision.output import object_text
from gpu_provision.output.findings import document, output_schema
from gpu_provision.rbac.roles import RbacSubject


@click.command()
@options.inventory
@click.option("--user", "users", metavar="NAME", multiple=True, help="Bind the roles to this user; can be repeated.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Bind the roles to this group; can be repeated.")
@click.option(
    "--service-account",
    "--serviceaccount",
    "accounts",
    metavar="NAMESPACE:NAME",
    multiple=True,
    help="Bind the roles to this service account; can be repeated.",
)
@click.option("--read-only", is_flag=True, help="Roles for read-only commands: status, plan, drift, history.")
@click.option("--destroy", is_flag=True, help="Roles for destroy.")
@click.option("--adopt", is_flag=True, help="Roles for adopt, which include those for apply.")
@click.option("--operator", is_flag=True, help="Roles for apply where the operator manages the stack.")
@options.output_options
def rbac(
    *,
    file: str | None,
    users: Iterable[str],
    groups: Iterable[str],
    accounts: Iterable[str],
    out: Output,
    **wanted: bool,
) -> None:
    """Print the minimal RBAC roles that an account needs for an inventory; makes no API calls.

    The roles cover every command except operator, destroy (--destroy) and adopt (--adopt).

    An administrator applies the roles before the first run:

    \b
    gpu-provision rbac -i prod --service-account ci:gpu-provision | kubectl apply -f -

    Prints a ClusterRole for cluster-scoped objects, a Role in each namespace of the stack, and bindings to the given
    users, groups and service accounts. Without any, prints roles only.
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if sum(wanted.values()) > 1:
        message = "--read-only, --destroy, --adopt and --operator exclude each other."
        raise click.UsageError(message)
    from gpu_provision.api.verbs import rbac as roles

    subjects = [
        *(RbacSubject("User", name) for name in users),
        *(RbacSubject("Group", name) for name in groups),
        *map(_parse_account, accounts),
    ]
    manifests = roles(load_inventory(file), subjects, **wanted)
    if not subjects:
        out.note("Roles only: bind them with --user, --group or --service-account.")
    out.result(document("rbac", manifests=manifests), object_text.yaml_stream(manifests))


def _parse_account(word: str) -> RbacSubject:
    """Return ``NAMESPACE:NAME`` as a subject. Raises UsageError."""
    namespace, _, name = word.partition(":")
    if namespace and name and ":" not in name:
        return RbacSubject("ServiceAccount", name, namespace)
    what, fix = "a service account needs a namespace and a name", "--service-account NAMESPACE:NAME"
    raise UsageError(Finding(code=codes.USAGE, where=f"--service-account {word}", what=what, fix=fix))


@click.command()
@click.option("--output", "of_output", is_flag=True, help="Schema of the --json documents.")
@click.option("--plan-file", "of_plan_file", is_flag=True, help="Schema of the files of plan --out.")
@options.output_options
def schema(*, of_output: bool, of_plan_file: bool, out: Output) -> None:
    """Print the JSON Schema of inventories, for editors and CI."""
    from gpu_provision.inventory import schema as inventory_schema

    published = output_schema() if of_output else inventory_schema()
    if of_plan_file and not of_output:
        from gpu_provision.cli.plan_file import schema as plan_schema

        published = plan_schema()
    out.result(published, json.dumps(published, indent=2))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh"]))
def completion(*, shell: str) -> None:
    """Print the completion script of SHELL, for commands, options, components and hosts.

    \b
    source <(gpu-provision completion bash)       now; in ~/.bashrc for every shell
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from click.shell_completion import get_completion_class

    root, made = click.get_current_context().find_root(), get_completion_class(shell)
    if made is not None:
        click.echo(made(root.command, {}, "gpu-provision", "_GPU_PROVISION_COMPLETE").source())


def _complete_codes(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [code for code in codes.meanings() if code.startswith(incomplete.upper())]


@click.command()
@click.argument("code", shell_complete=_complete_codes)
@options.output_options
def explain(*, code: str, out: Output) -> None:
    """Print the meaning, the usual cause and the remedy of the finding CODE."""
    meanings, code = codes.meanings(), code.upper()
    if code not in meanings:
        near = codes.find_nearest_code(code, meanings)
        fix = f"gpu-provision explain {near}" if near else "docs/findings.md lists all codes"
        raise UsageError(Finding(code=codes.USAGE, where=f"explain {code}", what="no finding has this code", fix=fix))
    meaning = meanings[code]
    text = f"{code}: {meaning.title}\n  cause: {meaning.cause}\n  remedy: {meaning.remedy}"
    out.result(document("explain", explanation={"code": code, **meaning._asdict()}), text)


@click.command()
@options.inventory
@click.option("--gpus", is_flag=True, help="Also repeat the vectorAdd validation of every GPU node.")
@options.lock_timeout
@options.output_options
def validate(*, file: str | None, gpus: bool, lock_timeout: int, out: Output) -> ExitCode:
    """Check an inventory file and report its problems at once.

    Shows the first twenty findings, errors before warnings, and the number of the others.
    With --gpus, also repeats the vectorAdd validations of every GPU node of the cluster.
    """
    from gpu_provision.inventory import check, load

    path = find_inventory(file)
    problems = check(path)
    if gpus and not problems.errors:
        from gpu_provision.cli.apply import revalidate

        return revalidate(load(path), out, lock_timeout=lock_timeout)
    if problems.errors:
        number = (
            f"{problems.hidden_count:,} more findings"
            if problems.hidden_count
            else pluralize(len(problems.errors), "error")
        )
        summary = f"{path}: {number}"
    else:
        valid = load(path)
        nodes = f"{pluralize(len(valid.nodes), 'node')}, {len(valid.gpu_nodes)} with GPUs"
        summary = f"{path} is valid: release {valid.release}, {nodes}"
    text = "\n".join(filter(None, [findings_view.text(problems.all, out.style), summary]))
    out.result(document("validate", problems.all, inventory=str(path), unshown=problems.hidden_count), text)
    return ExitCode.INVALID_INVENTORY if problems.errors else ExitCode.OK


@click.command()
@options.inventory
@click.option(
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write one file per component to this directory.",
)
@options.output_options
def render(*, file: str | None, folder: Path | None, out: Output) -> None:
    """Print the manifests of all components; makes no API calls.

    With --output, writes one file per component, numbered in dependency order, and deletes outdated files of an
    earlier render.
    """
    from gpu_provision.api.options import render as rendered

    manifests = rendered(load_inventory(file))
    everything, written = [manifest for group in manifests.values() for manifest in group], list[str]()
    if folder:
        texts = {
            f"{number:02}-{component.replace('_', '-')}.yaml": object_text.yaml_stream(group)
            for number, (component, group) in enumerate(manifests.items(), start=1)
            if group
        }
        written = [str(path) for path in write_texts(folder, texts)]
        text = "\n".join(written)
    else:
        text = object_text.yaml_stream(everything)
    out.result(document("render", manifests=everything, files=written), text)


_HEADER = "# Rendered by gpu-provision; the next render writes over it.\n"


def write_texts(folder: Path, named: Mapping[str, str]) -> tuple[Path, ...]:
    """Write YAML files by name, and delete outdated files of an earlier render.

    Keeps all other files. Raises UsageError if the directory cannot be written.
    """
    texts = {folder / name: _HEADER + text for name, text in named.items()}
    with report_write_errors(folder, "the files cannot be written", "name another directory with --output"):
        folder.mkdir(parents=True, exist_ok=True)
        for path in set(folder.glob("*.yaml")) - texts.keys():
            if path.read_bytes().startswith(_HEADER.encode()):
                path.unlink()
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    return tuple(texts)
