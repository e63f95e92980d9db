"""The one place where a failure becomes words and an exit code; the log file has the tracebacks."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import click

from gpu_provision import files
from gpu_provision.api.codes import USAGE
from gpu_provision.cli import codes
from gpu_provision.cli.output import Output, as_json, write
from gpu_provision.model.findings import ExitCode, Finding, ProvisionError, attached_findings, visible
from gpu_provision.output import findings as findings_view
from gpu_provision.output.documents import document


def report(error: BaseException, session: Session) -> ExitCode:
    """Say what went wrong, as text on stderr or as a JSON document on stdout, and return the exit code."""
    code, findings = _explained(error, session)
    out = session.output
    if out.json:
        write(sys.stdout, as_json(document(session.command, findings)))
    else:
        write(sys.stderr, findings_view.text(findings, out.error_style))
    if code is ExitCode.FAILED and out.verbose and not isinstance(error, ProvisionError):
        write(sys.stderr, "".join(traceback.format_exception(error)))
    return code


def _explained(error: BaseException, session: Session) -> tuple[ExitCode, tuple[Finding, ...]]:
    if isinstance(error, ProvisionError):
        return error.exit_code, error.findings
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return ExitCode.INTERRUPTED, (_interrupted(error), *attached_findings(error))
    if isinstance(error, click.ClickException):
        return ExitCode.USAGE, (_misused(error),)
    return ExitCode.FAILED, (_internal(error, session),)


def _interrupted(error: BaseException) -> Finding:
    return Finding(
        code=codes.INTERRUPTED,
        what="interrupted",
        evidence="; ".join(getattr(error.__cause__ or error, "__notes__", ())),  # click wraps it
        fix="run the same command again: it goes on from where things stand",
    )


def _misused(error: click.ClickException) -> Finding:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "gpu-provision"
    return Finding(code=USAGE, what=error.format_message(), fix=f"{path} --help")


def _internal(error: BaseException, session: Session) -> Finding:
    where = keep(error, command=session.command)
    return Finding(
        code=codes.INTERNAL,
        what=f"a mistake in gpu-provision itself: {type(error).__name__}: {_first_line(error)}",
        evidence=f"traceback in {where}" if where else "".join(traceback.format_exception(error)),
        fix="please report it with that file" if where else "please report it with that traceback",
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def default_output(arguments: list[str]) -> Output:
    """Return the output for failures that come before the options are parsed."""
    return Output(json="--json" in arguments)


def path() -> Path:
    """Return ``$XDG_STATE_HOME/gpu-provision/gpu-provision.log``, below ~/.local/state by default."""
    return files.state_folder() / "gpu-provision.log"


def keep(error: BaseException, *, command: str) -> Path | None:
    """Append an error's traceback; return the file, or None if it cannot be written."""
    file = path()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = f"{now} gpu-provision {command}\n{''.join(traceback.format_exception(error))}\n"
    try:
        files.make_state_folder(file.parent)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor with its own mode
            stream.write(visible(entry))
    except OSError:
        return None
    return file


@dataclass(slots=True)
class Session:
    """One run of the command line; filled in as parsing goes on."""

    command: str = ""
    output: Output = field(default_factory=Output)
