"""A group of commands that helps with mistyped ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from gpu_provision.cli.session import Session
from gpu_provision.model.findings import ExitCode


class Commands(click.Group):
    """A group that knows the nearest command to a mistyped one, and says which command runs.

    Attributes:
        modules: Command -> the module of this package that has it; imported when the command is asked for, so that
            `render` does not pay for `apply`.
    """

    modules: Mapping[str, str]

    def __init__(self, *arguments: Any, modules: Mapping[str, str] | None = None, **options: Any) -> None:
        """Take what click.Group takes, and the modules."""
        super().__init__(*arguments, **options)
        self.modules = modules or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, imported or not."""
        return sorted({*super().list_commands(ctx), *self.modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported if need be."""
        if cmd_name in self.modules and cmd_name not in self.commands:
            module = import_module(f"gpu_provision.cli.{self.modules[cmd_name]}")
            self.add_command(getattr(module, cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

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
