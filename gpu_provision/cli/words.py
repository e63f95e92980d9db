"""Words that a command takes only if they look like what they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

Check = Callable[[click.Context, click.Parameter, str], str]


def _like(pattern: str, what: str) -> Check:
    """Return a click callback that takes an empty default, and what a pattern matches as a whole."""

    def check(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        if value and not re.fullmatch(pattern, value):
            message = f"{value!r} is no {what}."
            raise click.BadParameter(message)
        return value

    return check


image = _like(r"[A-Za-z0-9][\w.:/@-]*", "name of an image, such as registry.example.com/gpu-provision:0.1.0")
kubernetes = _like(r"v?1\.\d+([.+-]\S*)?", "version of Kubernetes, such as 1.27")


def stack(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Take the name of a stack: it becomes part of a path at the API server."""
    from gpu_provision.inventory.shape import schema

    rule = schema()["$defs"]["name"]
    if not re.fullmatch(rule["pattern"], value):
        message = f"{value!r} is no name of a stack. {rule['patternErrorMessage']}."
        raise click.BadParameter(message)
    return value
