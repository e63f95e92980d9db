"""The one place where a failure becomes words and an exit code."""

from __future__ import annotations

import sys
import traceback

import click

from gpu_provision.cli import codes, log
from gpu_provision.cli.output import Output, as_json, write
from gpu_provision.cli.session import Session
from gpu_provision.library.codes import USAGE
from gpu_provision.model.findings import ExitCode, Finding, ProvisionError, left_with
from gpu_provision.report import findings as findings_view
from gpu_provision.report.documents import document


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
        return ExitCode.INTERRUPTED, (_interrupted(error), *left_with(error))
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
    where = log.keep(error, command=session.command)
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
