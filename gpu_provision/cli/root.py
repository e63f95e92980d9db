"""The command group, and the function behind the ``gpu-provision`` script."""

from __future__ import annotations

import contextlib
import difflib
import gc
import keyword
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from gpu_provision.cli import output
from gpu_provision.cli.output import BrokenOutputError, CliContext
from gpu_provision.model.codes import ExitCode


class LazyCommand(NamedTuple):
    """A command that is imported on use, so that `render` does not import `apply`, nor `--help` all commands.

    Attributes:
        module: The module of this package with the command.
        summary: Its line in the list of commands; it fits in 80 columns.
    """

    module: str
    summary: str


class SuggestingGroup(click.Group):
    """A group that suggests the nearest command for a mistyped one, and records the running command.

    Attributes:
        lazy_commands: Commands that are imported on use, by name.
    """

    lazy_commands: Mapping[str, LazyCommand] = MappingProxyType({})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, imported or not."""
        return sorted({*super().list_commands(ctx), *self.lazy_commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; import it on first use."""
        if cmd_name in self.lazy_commands and cmd_name not in self.commands:
            module = import_module(f"gpu_provision.cli.{self.lazy_commands[cmd_name].module}")
            attribute = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
            self.add_command(getattr(module, attribute), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without an import."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))  # as click has it
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name, limit)) for name in names])

    def _summary(self, ctx: click.Context, name: str, limit: int) -> str:
        if name in self.lazy_commands:
            return self.lazy_commands[name].summary
        command = self.get_command(ctx, name)
        return command.get_short_help_str(limit) if command else ""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands without an import."""
        names = (name for name in self.list_commands(ctx) if name.startswith(incomplete))
        items = [CompletionItem(name, help=self._summary(ctx, name, 80)) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help of a bare group, as a usage error."""
        if not (args or self.invoke_without_command or ctx.resilient_parsing):
            click.echo(ctx.get_help(), err=True)
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises click.UsageError with the nearest name."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], names, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(names)}."
            message = f"No such command '{args[0]}'. {hint}"
            raise click.UsageError(message, ctx=ctx)
        name, command, rest = super().resolve_command(ctx, args)
        session = ctx.ensure_object(CliContext)
        session.command = f"{session.command} {name}".strip()
        return name, command, rest


EXIT_CODES = {
    ExitCode.OK: "done; for plan, no matter whether changes are pending",
    ExitCode.FAILED: "something failed: a host, the cluster, a validation",
    ExitCode.DIFFERENCES: "only with --detailed-exitcode: something differs or is not ready",
    ExitCode.USAGE: "wrong usage",
    ExitCode.INVALID_INVENTORY: "the inventory is invalid; of import, a file",
    ExitCode.UNREACHABLE: "the API server or sandbox does not answer; of verify, also a host",
    ExitCode.LOCKED: "another run holds the lock, or wrote during planning: try again",
    ExitCode.INTERRUPTED: "interrupted",
}
_EPILOG = "\n".join(["\b", "Exit codes:", *(f"  {code.value:>3}  {meaning}" for code, meaning in EXIT_CODES.items())])


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's signature
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"gpu-provision {version('gpu-provision')}")
    context.exit()


_COMMANDS = {
    "adopt": LazyCommand("adopt", "Take over a cluster from the GPU Operator and its Helm chart."),
    "apply": LazyCommand("apply", "Apply an inventory to hosts and cluster, and wait until ready."),
    "completion": LazyCommand("validate", "Print the shell completion script."),
    "diff": LazyCommand("history", "Compare the inventories of two runs."),
    "drift": LazyCommand("apply", "Show changes since the last apply, and their field managers."),
    "explain": LazyCommand("validate", "Print the meaning, cause and remedy of a finding."),
    "history": LazyCommand("history", "List the recorded runs, the newest first."),
    "destroy": LazyCommand("apply", "Uninstall an inventory's stack from cluster and hosts."),
    "import": LazyCommand("imports", "Print an inventory of the GPU Operator's settings."),
    "operator": LazyCommand("operator", "Install and run the controller that reconciles GPUStacks."),
    "plan": LazyCommand("apply", "Show what apply would change; read-only."),
    "preflight": LazyCommand("apply", "Check hosts and cluster before a run; read-only."),
    "rbac": LazyCommand("validate", "Print the minimal RBAC roles for an inventory."),
    "releases": LazyCommand("releases", "List the known releases, or what changes between two."),
    "render": LazyCommand("validate", "Print the manifests of all components; makes no API calls."),
    "report": LazyCommand("report", "Write an HTML report of a run."),
    "rollback": LazyCommand("history", "Apply the component versions of an earlier run."),
    "sandbox": LazyCommand("sandbox", "Manage a simulated cluster with GPU nodes on this machine."),
    "schema": LazyCommand("validate", "Print the JSON Schema of inventories, for editors and CI."),
    "status": LazyCommand("apply", "Show the state of every component and node, with reasons."),
    "unlock": LazyCommand("history", "Release the lock of a dead run."),
    "validate": LazyCommand("validate", "Check an inventory file and report its problems at once."),
    "verify": LazyCommand("apply", "Run acceptance tests against hosts and cluster; read-only."),
}


@click.group(cls=SuggestingGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Provision NVIDIA GPU nodes for Kubernetes from one inventory file.

    To try it without a GPU: gpu-provision sandbox up, then plan, apply and status.
    """


cli.lazy_commands = _COMMANDS


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with a code of ExitCode."""
    gc.set_threshold(50_000)  # imports and object copies are no garbage: collection takes 5% of a plan
    words = sys.argv[1:] if arguments is None else arguments
    click.UsageError.exit_code = ExitCode.USAGE  # click's own is 2, which means "differences" here
    signal.signal(signal.SIGTERM, _terminate)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, such as a daemon
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the end
    code = run(words)
    gc.freeze()  # skips the collection at exit: 10% of a short command
    sys.exit(code)


def run(words: list[str]) -> int:
    """Run one command, report its failure, and return the exit code."""
    session = CliContext(output=output.default_output(words))
    try:
        returned: Any = cli.main(args=words, prog_name="gpu-provision", standalone_mode=False, obj=session)
    except BrokenPipeError:  # the reader, such as `head`, has exited
        _discard_output()
        return 128 + signal.SIGPIPE
    except BrokenOutputError as lost:
        _discard_output()
        with contextlib.suppress(OSError, BrokenOutputError):  # on stderr, also with --json
            return output.report_error(lost, CliContext(output=replace(session.output, json=False)))
        return lost.exit_code
    except click.exceptions.Exit as done:
        return done.exit_code
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the only handler that prints failures
        code = output.report_error(error, session)
        return 128 + signal.SIGTERM if isinstance(error.__cause__, SigtermReceived) else code
    return int(returned or ExitCode.OK)


def _discard_output() -> None:
    """Discard buffered output, so that the interpreter does not write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class SigtermReceived(KeyboardInterrupt):
    """SIGTERM, handled as Ctrl-C: locks are released."""


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SigtermReceived
