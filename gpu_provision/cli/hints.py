"""The next command, written out: with what narrowed this one, so that it does what was looked at."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator

import click
from click.core import ParameterSource

_WHERE = ("kubeconfig", "context", "ask_sudo_password")
_PART = ("file", "limit", "targets", "hosts_only", "cluster_only", "ignored")


def command(name: str, *words: str, part: bool = True) -> str:
    """Return ``gpu-provision NAME WORDS`` with the options of this command line that the next one needs, too.

    Without ``part``, those that say what takes part are left out: a plan file says that itself.
    """
    names = (*_WHERE, *_PART) if part else _WHERE
    return " ".join(("gpu-provision", name, *words, *_given(names)))


def _given(names: Collection[str]) -> Iterator[str]:
    context = click.get_current_context()
    for option in context.command.params:
        said = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if not (said and option.name in names):
            continue
        if getattr(option, "is_flag", False):
            yield option.opts[0]
            continue
        values = context.params[option.name]
        for value in values if option.multiple else (values,):
            yield f"{option.opts[0]} {shlex.quote(str(value))}"
