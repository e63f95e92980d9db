"""Options that commands share; their names are those of the library's arguments."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from gpu_provision import files
from gpu_provision.cli import output
from gpu_provision.cli.output import CliContext
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, ProvisionError, UsageError
from gpu_provision.model.inventory import Inventory

Command = Callable[..., Any]
DEFAULT = Path("inventories") / "sandbox.yaml"
_VARIABLE, _API_TIMEOUT = "GPU_PROVISION_INVENTORY", "GPU_PROVISION_API_TIMEOUT"


def find_inventory(option: str | None) -> Path:
    """Return the inventory's path: the option, the environment variable, or the sandbox's.

    ``prod`` is short for ``inventories/prod.yaml`` if that exists. Raises UsageError without any inventory, or for
    pyinfra's .py inventory without a YAML file beside it.
    """
    named = option or os.environ.get(_VARIABLE, "")
    if not named and files.is_file(DEFAULT):
        return DEFAULT
    if not named:
        what = f"no inventory named, and there is no {DEFAULT} here"
        fix = f"gpu-provision COMMAND -i FILE, or set {_VARIABLE}"
        raise UsageError(Finding(code=codes.NO_INVENTORY, what=what, fix=fix))
    from gpu_provision.inventory.document import expand_home

    path, short = expand_home(named), DEFAULT.parent / f"{named}.yaml"
    if path.suffix == ".py":
        beside = path.with_suffix(".yaml")
        if files.is_file(beside):
            return beside
        what = "gpu-provision reads the YAML file, not pyinfra's inventory in Python"
        raise UsageError(Finding(code=codes.NO_INVENTORY, where=str(path), what=what, fix=f"-i {beside}"))
    return short if not files.path_exists(path) and files.is_file(short) else path


def load_inventory(option: str | None, *, kubeconfig: str | None = None, context: str | None = None) -> Inventory:
    """Return the inventory for the cluster of the options. Raises InvalidInventoryError."""
    from gpu_provision.inventory import load
    from gpu_provision.inventory.loader import with_cluster

    return with_cluster(load(find_inventory(option)), kubeconfig=kubeconfig, context=context)


def _complete_inventories(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    names = (path.stem for path in sorted(DEFAULT.parent.glob("*.yaml")))
    return [*(CompletionItem(name) for name in names if name.startswith(incomplete)), CompletionItem("", type="file")]


def _complete_hosts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    with contextlib.suppress(ProvisionError):
        known = load_inventory(context.params.get("file"))
        words = (*(node.name for node in known.nodes), "gpu", "nodes", *(f"pool_{pool}" for pool in known.pools))
        return [f"{before}{comma}{word}" for word in words if word.startswith(last)]
    return []


def _complete_components(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    with contextlib.suppress(ProvisionError):
        from gpu_provision.components import requirements

        names = requirements(load_inventory(context.params.get("file")))
        return [name for name in names if name.startswith(incomplete.replace("-", "_"))]
    return []


def complete_releases(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an installable release."""
    from gpu_provision import releases

    return [name for name in releases.names() if name.startswith(incomplete)]


def _expand_home(_context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Expand a tilde, which no shell expands in --kubeconfig=~/config."""
    from gpu_provision.inventory.document import expand_home

    return str(expand_home(path)) if path else path


def _set_api_timeout(_context: click.Context, _option: click.Parameter, seconds: int | None) -> None:
    if seconds is not None:
        os.environ[_API_TIMEOUT] = str(seconds)


def _prompt_sudo_password(_context: click.Context, _option: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click calls it so
    if wanted:
        from gpu_provision.inventory import pyinfra_inventory

        pyinfra_inventory.set_sudo_password(click.prompt("Password of sudo on the hosts", hide_input=True, err=True))


def seconds(name: str, **more: Any) -> Callable[[Command], Command]:
    """Return an option for a number of seconds, at least 1."""
    return click.option(name, **{"type": click.IntRange(min=1), "metavar": "SECONDS", **more})


inventory = click.option(
    "-i",
    "--inventory",
    "file",
    metavar="FILE",
    shell_complete=_complete_inventories,
    help="Inventory file. Default: $GPU_PROVISION_INVENTORY, else inventories/sandbox.yaml if it exists.",
)
_api_timeout = seconds(
    "--api-timeout",
    expose_value=False,
    callback=_set_api_timeout,
    help="How long to retry an unanswered API request."
    f" Default: ${_API_TIMEOUT}, else 5 for the first answer and 60 afterwards.",
)
_limit = functools.partial(click.option, "--limit", metavar="HOST[,HOST...]", shell_complete=_complete_hosts)
read_limit = _limit(help="Only these nodes: names, patterns, groups, or @FILE.")
hosts_limit = _limit(help="Only these hosts: names, patterns, groups, or @FILE. Skips the cluster.")
_part_limit = _limit(
    help="Only these nodes: names, patterns such as 'gpu-0*', groups, or @FILE with one per line."
    " Limits hosts, node labels, drivers and validations; cluster-wide objects are not limited."
)
_target = click.option(
    "--target",
    "targets",
    metavar="COMPONENT",
    multiple=True,
    shell_complete=_complete_components,
    callback=lambda _context, _option, words: words or None,
    help="Only this component and those that it requires; can be repeated.",
)
_timeout = seconds("--timeout", help="Override the inventory's timeout of each component.")
lock_timeout = seconds(
    "--lock-timeout",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How long to wait for another run's lock; then exit with 75.",
)
_take_over = click.option(
    "--take-over",
    is_flag=True,
    help="Take over GPUStack fields from other field managers, if the operator manages the stack.",
)
yes = click.option("-y", "--yes", is_flag=True, help="Skip the confirmation before a change of a real cluster.")
report = click.option(
    "--report",
    metavar="FILE.html",
    help="Write an HTML report of the run, also of a failed one: timeline, changes, validations.",
)
_detailed_exitcode = functools.partial(click.option, "--detailed-exitcode", is_flag=True)
detailed_exitcode = _detailed_exitcode(help="Exit with 2 if something differs or is not ready.")
drift_exitcode = _detailed_exitcode(help="Exit with 2 if drift finds anything but pending changes.")
ask_sudo_password = click.option(
    "-K",
    "--ask-sudo-password",
    is_flag=True,
    expose_value=False,
    callback=_prompt_sudo_password,
    help="Prompt once for the sudo password of the hosts. Default: $GPU_PROVISION_SUDO_PASSWORD, else none.",
)
ignore = click.option(
    "--ignore",
    "ignored",
    metavar="CODE[,CODE...]",
    multiple=True,
    help="Downgrade these preflight errors, such as GP620, to warnings and hide these warnings; can be repeated.",
)


def _cluster_options(kubeconfig: str, context: str) -> Callable[[Command], Command]:
    """Return what adds --kubeconfig and --context with these help texts, and --api-timeout."""
    first = click.option("--kubeconfig", metavar="FILE", callback=_expand_home, help=kubeconfig)
    return lambda command: first(click.option("--context", metavar="NAME", help=context)(_api_timeout(command)))


cluster_of_inventory = _cluster_options("Override the inventory's kubeconfig.", "Override the inventory's context.")
cluster_of_kubeconfig = _cluster_options(
    "Kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config.", "Context. Default: the current one."
)


def phase_options(command: Command) -> Command:
    """Add --hosts-only and --cluster-only; the library refuses both at once."""
    hosts_only = click.option("--hosts-only", is_flag=True, help="Skip the cluster.")
    return hosts_only(click.option("--cluster-only", is_flag=True, help="Skip the hosts.")(command))


def part_options(*, runs: bool, targets: bool = True) -> Callable[[Command], Command]:
    """Add the arguments of `gpu_provision.apply` that select a scope, with timeouts if the command ``runs``."""
    options: list[Callable[[Command], Command]] = [_part_limit, *([_target] if targets else [])]
    options += [phase_options, ignore, ask_sudo_password, *([_timeout, lock_timeout] if runs else []), _take_over]

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The inventory file of a command, None for the default, and overrides of its cluster."""

    file: str | None
    kubeconfig: str | None
    context: str | None

    def load(self, default: str | None = None) -> Inventory:
        """Return the inventory with the overrides. Raises InvalidInventoryError, UsageError."""
        return load_inventory(self.file or default, kubeconfig=self.kubeconfig, context=self.context)


def stack_options(command: Command) -> Command:
    """Add --inventory, --kubeconfig and --context, and pass these as one ``stack``.

    They may also precede the name of a subcommand.
    """

    @inventory
    @cluster_of_inventory
    @functools.wraps(command)
    def wrapped(*, file: str | None, kubeconfig: str | None, context: str | None, **rest: Any) -> Any:
        parent = click.get_current_context().parent
        above = parent.params if parent else {}
        names = {"file": file, "kubeconfig": kubeconfig, "context": context}
        return command(stack=StackOptions(**{key: value or above.get(key) for key, value in names.items()}), **rest)

    return wrapped


def cluster_options(command: Command) -> Command:
    """Add --kubeconfig and --context, and pass a connection as ``cluster``. Comes last: other options fail first."""

    @cluster_of_kubeconfig
    @functools.wraps(command)
    def wrapped(*, kubeconfig: str | None, context: str | None, **rest: Any) -> Any:
        from gpu_provision.kube.client import connect

        return command(cluster=connect(kubeconfig or "", context or ""), **rest)

    return wrapped


def output_options(command: Command) -> Command:
    """Add --json, --quiet, --verbose and --no-color, and pass these as one ``out``."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout; never prompts.")
    @click.option("-q", "--quiet", is_flag=True, help="Hide progress and hints.")
    @click.option("-v", "--verbose", count=True, help="Show timestamps, output of validations and tracebacks.")
    @click.option("--no-color", is_flag=True, help="Disable colors, as NO_COLOR and TERM=dumb do.")
    @functools.wraps(command)
    def wrapped(*, as_json: bool, quiet: bool, verbose: int, no_color: bool, **rest: Any) -> Any:
        out = output.make_output(as_json=as_json, quiet=quiet, verbose=verbose, no_color=no_color)
        if "context" in click.get_current_context().params:
            from gpu_provision.cli import display

            display.start(out)
        click.get_current_context().ensure_object(CliContext).output = out
        return command(out=out, **rest)

    return wrapped


def pattern_callback(pattern: str, what: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """Return a click callback that accepts an empty default and full matches of a pattern."""

    def check(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        if value and not re.fullmatch(pattern, value):
            message = f"{value!r} is no {what}."
            raise click.BadParameter(message)
        return value

    return check
