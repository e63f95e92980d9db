"""A group of commands that helps with mistyped ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from gpu_provision.cli.session import Session
from gpu_provision.model.findings import ExitCode


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A command that is imported when it is asked for, so that `render` does not pay for `apply`, nor `--help` for all.

    Attributes:
        module: The module of this package that has it, under its name.
        summary: Its line in the list of commands; it fits in 80 columns.
    """

    module: str
    summary: str


class Commands(click.Group):
    """A group that knows the nearest command to a mistyped one, and says which command runs.

    Attributes:
        elsewhere: Commands that are not imported yet, by name.
    """

    elsewhere: Mapping[str, Elsewhere]

    def __init__(self, *arguments: Any, elsewhere: Mapping[str, Elsewhere] | None = None, **options: Any) -> None:
        """Take what click.Group takes, and the commands that are elsewhere."""
        super().__init__(*arguments, **options)
        self.elsewhere = elsewhere or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, imported or not."""
        return sorted({*super().list_commands(ctx), *self.elsewhere})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported if need be."""
        if cmd_name in self.elsewhere and cmd_name not in self.commands:
            module = import_module(f"gpu_provision.cli.{self.elsewhere[cmd_name].module}")
            self.add_command(getattr(module, cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, and import none of them for it."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))  # as click has it
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name, limit)) for name in names])

    def _summary(self, ctx: click.Context, name: str, limit: int) -> str:
        if name in self.elsewhere:
            return self.elsewhere[name].summary
        command = self.get_command(ctx, name)
        return command.get_short_help_str(limit) if command else ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Answer a bare group with its help, as a usage error."""
        if not args and not self.invoke_without_command:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises click.UsageError with the nearest name."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            message = f"No such command '{args[0]}'.{_nearest(args[0], self.list_commands(ctx))}"
            raise click.UsageError(message, ctx=ctx)
        name, command, rest = super().resolve_command(ctx, args)
        session = ctx.ensure_object(Session)
        session.command = f"{session.command} {name}".strip()
        return name, command, rest


def _nearest(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    return f" Did you mean '{near[0]}'?" if near else f" There are: {', '.join(words)}."
