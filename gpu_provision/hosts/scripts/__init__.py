"""Shell scripts for hosts, as files that shellcheck reads."""

from __future__ import annotations

import shlex
from functools import cache
from importlib import resources

from gpu_provision.hosts import paths


@cache
def load(name: str) -> str:
    """Return the text of a script."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def assign(**variables: str) -> str:
    """Return shell assignments: of variables, and of all paths in `gpu_provision.hosts.paths`."""
    values = {**paths.VARIABLES, **variables}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
