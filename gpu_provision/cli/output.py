"""Where a command's words go: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.output.text import (
    PLAIN,
    Style,
    for_terminal,
    wants_color,
)


class OutputLost(ProvisionError):
    """Nothing can be written where the output goes, such as on a full disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How this run speaks.

    Attributes:
        json: One JSON document on stdout instead of text.
        quiet: No progress and no hints; results and errors remain.
        verbose: How often ``-v`` was given: timestamps, and a traceback for internal errors.
        style: Colors of stdout.
        error_style: Colors of stderr.
    """

    json: bool = False
    quiet: bool = False
    verbose: int = 0
    style: Style = PLAIN
    error_style: Style = PLAIN

    def result(self, document: Mapping[str, Any], text: str) -> None:
        """Print what the command was asked for, in the form that was asked for."""
        write(sys.stdout, as_json(document) if self.json else text)

    def note(self, text: str) -> None:
        """Say something on the way, for people; silent with ``--quiet``."""
        if not self.quiet:
            write(sys.stderr, text)

    def hint(self, text: str) -> None:
        """Add a line for people below a text result; absent from JSON and with ``--quiet``."""
        if not (self.quiet or self.json):
            write(sys.stdout, text)


def make(*, as_json: bool, quiet: bool, verbose: int, no_color: bool) -> Output:
    """Return the output that the options and the terminal ask for."""

    def style(stream: TextIO) -> Style:
        return Style(enabled=wants_color(os.environ, terminal=stream.isatty(), refused=no_color))

    return Output(json=as_json, quiet=quiet, verbose=verbose, style=style(sys.stdout), error_style=style(sys.stderr))


def as_json(document: Mapping[str, Any]) -> str:
    """Return a document as JSON text with sorted keys."""
    return json.dumps(document, indent=2, sort_keys=True, default=str)


def write(stream: TextIO, text: str) -> None:
    """Write a text and end its last line; only the tool's own colors steer a terminal."""
    if not text:
        return
    shown = for_terminal(text)
    try:
        stream.write(shown if shown.endswith("\n") else f"{shown}\n")
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(
            Finding(code=codes.NOT_WRITABLE, what="the output cannot be written", evidence=str(error.strerror))
        ) from error
