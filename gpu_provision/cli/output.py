"""Output of commands: results on stdout, all else on stderr; questions; text and exit codes of failures."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from gpu_provision import files
from gpu_provision.model import codes
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import (
    Finding,
    ProvisionError,
    UsageError,
    attached_findings,
    escape_control_characters,
)
from gpu_provision.model.text import pluralize
from gpu_provision.output import findings as findings_view
from gpu_provision.output.findings import document
from gpu_provision.output.text import PLAIN, Style, escape_for_terminal, wants_color

if TYPE_CHECKING:
    from gpu_provision.model.inventory import Inventory


class BrokenOutputError(ProvisionError):
    """The output cannot be written, such as on a full disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output options of a command.

    Attributes:
        json: One JSON document on stdout instead of text.
        quiet: No progress and no hints; results and errors remain.
        verbose: Number of ``-v``: timestamps, and a traceback for internal errors.
        style: Colors of stdout.
        error_style: Colors of stderr.
    """

    json: bool = False
    quiet: bool = False
    verbose: int = 0
    style: Style = PLAIN
    error_style: Style = PLAIN

    def result(self, document: Mapping[str, Any], text: str) -> None:
        """Print the result of the command as text or JSON."""
        write(sys.stdout, to_json_text(document) if self.json else text)

    def show(self, result: Any) -> None:
        """Print a value of the API as `result` does, and its findings on stderr."""
        self.result(result.document(), result.text(self.style))
        self.findings(result.findings)

    def findings(self, items: Iterable[Finding]) -> None:
        """Print findings on stderr; a JSON document contains these."""
        if not self.json:
            write(sys.stderr, findings_view.text(items, self.error_style))

    def note(self, text: str) -> None:
        """Print a progress note; silent with ``--quiet``."""
        if not self.quiet:
            write(sys.stderr, text)

    def hint(self, text: str) -> None:
        """Print a line below a text result; nothing with ``--json`` or ``--quiet``."""
        if not (self.quiet or self.json):
            write(sys.stdout, text)


def make_output(*, as_json: bool, quiet: bool, verbose: int, no_color: bool) -> Output:
    """Return the output of the options and the terminal."""

    def style(stream: TextIO) -> Style:
        is_bounded = stream.isatty() or "COLUMNS" in os.environ  # a log keeps its lines whole
        columns = shutil.get_terminal_size((0, 0)).columns if is_bounded else 0
        return Style(enabled=wants_color(os.environ, terminal=stream.isatty(), refused=no_color), columns=columns)

    return Output(json=as_json, quiet=quiet, verbose=verbose, style=style(sys.stdout), error_style=style(sys.stderr))


@contextlib.contextmanager
def report_write_errors(
    place: Path, what: str, fix: str, *, code: str = codes.NOT_WRITABLE, error_class: type[ProvisionError] = UsageError
) -> Iterator[None]:
    """Turn an OSError of the block, which writes a file, into a finding."""
    try:
        yield
    except OSError as error:
        evidence = error.strerror or str(error)
        raise error_class(Finding(code=code, where=str(place), what=what, evidence=evidence, fix=fix)) from error


def to_json_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON text with sorted keys."""
    return json.dumps(document, indent=2, sort_keys=True, default=str)


def write(stream: TextIO, text: str) -> None:
    """Write a text with a final newline; escapes control characters except the tool's own colors."""
    if not text:
        return
    escaped = escape_for_terminal(text)
    try:
        stream.write(escaped if escaped.endswith("\n") else f"{escaped}\n")
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BrokenOutputError(
            Finding(code=codes.NOT_WRITABLE, what="the output cannot be written", evidence=str(error.strerror))
        ) from error


@dataclass(slots=True)
class CliContext:
    """One run of the command line; filled during parsing."""

    command: str = ""
    output: Output = field(default_factory=Output)


def needs_confirmation(inventory: Inventory, *, yes: bool) -> bool:
    """Return whether to ask for confirmation: always, except for a sandbox or with ``--yes``."""
    return not (yes or inventory.cluster.sandbox)


def require_terminal(out: Output, *, look: str) -> None:
    """Raise UsageError without a terminal for the prompt, or with JSON output; ``look`` is the preview command."""
    if not has_terminal(out):
        what = "this would change a real cluster, and there is no terminal for the confirmation"
        fix = f"look with gpu-provision {look}, then add --yes"
        raise UsageError(Finding(code=codes.NOT_CONFIRMED, what=what, fix=fix))


def has_terminal(out: Output) -> bool:
    """Return whether a prompt is possible."""
    return not out.json and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask on the terminal; only "y" and "yes" confirm."""
    return click.confirm(escape_control_characters(question), default=False, err=True)


def describe_target(inventory: Inventory, cluster: str, hosts: int = 0) -> str:
    """Return the target of a question: the cluster with its context, if it takes part, and the number of hosts."""
    context = f"context {inventory.cluster.context}" if inventory.cluster.context else "the current context"
    target = f"cluster {cluster}, {context}" if cluster else ""
    return " and ".join(filter(None, (target, pluralize(hosts, "host") if hosts else "")))


def report_error(error: BaseException, session: CliContext) -> ExitCode:
    """Print an error, as text on stderr or as a JSON document on stdout, and return the exit code."""
    code, findings = _findings_of(error, session)
    out = session.output
    if out.json:
        write(sys.stdout, to_json_text(document(session.command, findings)))
    else:
        write(sys.stderr, findings_view.text(findings, out.error_style))
    if code is ExitCode.FAILED and out.verbose and not isinstance(error, ProvisionError):
        write(sys.stderr, "".join(traceback.format_exception(error)))
    return code


def _findings_of(error: BaseException, session: CliContext) -> tuple[ExitCode, tuple[Finding, ...]]:
    if isinstance(error, ProvisionError):
        return error.exit_code, error.findings
    if isinstance(error, KeyboardInterrupt | click.Abort):
        notes = getattr(error.__cause__ or error, "__notes__", ())  # click wraps it
        fix = "run the same command again; it resumes the run"
        interrupted = Finding(code=codes.INTERRUPTED, what="interrupted", evidence="; ".join(notes), fix=fix)
        return ExitCode.INTERRUPTED, (interrupted, *attached_findings(error))
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        fix = f"{context.command_path if context else 'gpu-provision'} --help"
        return ExitCode.USAGE, (Finding(code=codes.USAGE, what=error.format_message(), fix=fix),)
    where, first_line = log_traceback(error, command=session.command), next(iter(str(error).splitlines()), "")
    internal = Finding(
        code=codes.INTERNAL,
        what=f"a mistake in gpu-provision itself: {type(error).__name__}: {first_line}",
        evidence=f"traceback in {where}" if where else "".join(traceback.format_exception(error)),
        fix="please report it with that file" if where else "please report it with that traceback",
    )
    return ExitCode.FAILED, (internal,)


def default_output(arguments: list[str]) -> Output:
    """Return the output for failures before option parsing."""
    return Output(json="--json" in arguments)


def log_traceback(error: BaseException, *, command: str) -> Path | None:
    """Append an error's traceback to the log file; return the file, or None if it cannot be written."""
    file = files.state_folder() / "gpu-provision.log"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = f"{now} gpu-provision {command}\n{''.join(traceback.format_exception(error))}\n"
    try:
        files.make_state_folder(file.parent)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor with its own mode
            stream.write(escape_control_characters(entry))
    except OSError:
        return None
    return file
