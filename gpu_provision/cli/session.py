"""What the error handler has to know about the command that failed."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_provision.cli.output import Output


@dataclass(slots=True)
class Session:
    """One run of the command line; filled in as parsing goes on."""

    command: str = ""
    output: Output = field(default_factory=Output)
