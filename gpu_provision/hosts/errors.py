"""Findings about errors of hosts and connections; their texts are in errors.toml."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gpu_provision.model.findings import Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTarget:
    """Address and credentials of a host for texts; empty and zero stand for the user's SSH configuration."""

    name: str
    address: str = ""
    port: int = 0
    user: str = ""
    key: str = ""
    known_hosts: str = ""

    @property
    def login(self) -> str:
        """The arguments of ssh and ssh-copy-id."""
        port = f"-p {self.port} " if self.port else ""
        return f"{port}{shlex.quote(f'{self.user}@{self.target}' if self.user else self.target)}"

    @property
    def target(self) -> str:
        """The address; without one the name."""
        return self.address or self.name

    @property
    def forget_command(self) -> str:
        """The command that removes the host's key from known_hosts."""
        file = f"-f {shlex.quote(self.known_hosts)} " if self.known_hosts else ""
        entry = f"'[{self.target}]:{self.port}'" if self.port not in {0, 22} else self.target
        return f"ssh-keygen {file}-R {entry}"

    @property
    def show_keys(self) -> str:
        """The command that shows the host's keys."""
        return f"ssh-keyscan {f'-p {self.port} ' if self.port else ''}{self.target} | ssh-keygen -lf -"


@cache
def texts() -> Mapping[str, Any]:
    """Return the content of errors.toml."""
    import tomllib  # noqa: PLC0415 - only a host with a problem pays for it

    return tomllib.loads(resources.files(__package__).joinpath("errors.toml").read_text(encoding="utf-8"))


def fill(text: Mapping[str, str], where: str, evidence: str = "", severity: str = "", **words: Any) -> Finding:
    """Return the finding of a table, with its placeholders filled; an error without another severity."""
    what, default_evidence, consequence, fix = (
        text.get(key, "").format(**words) for key in ("what", "evidence", "consequence", "fix")
    )
    return Finding(
        code=text["code"],
        what=what,
        where=where,
        evidence=evidence or default_evidence,
        consequence=consequence,
        fix=fix,
        severity=Severity(severity or text.get("severity", "error")),
    )


def finding(entry: str, where: str, evidence: str = "", **words: Any) -> Finding:
    """Return a finding by its name in errors.toml, such as ``reboot.needed`` for a nested table."""
    text: Any = texts()
    for name in entry.split("."):
        text = text[name]
    return fill(text, where, evidence, **words)


def host_error(kind: str, reached: SshTarget, evidence: str = "", **words: Any) -> Finding:
    """Return an error about a host by its name in errors.toml."""
    return _fill_for_target(texts()[kind], reached, evidence, **words)


def unreadable_host(name: str) -> Finding:
    """Return the error about a host whose facts could not be read, for an unknown reason."""
    return host_error("unreadable", SshTarget(name=name))


def connect_error(error: BaseException, reached: SshTarget) -> Finding:
    """Return why the connection failed."""
    evidence = _evidence(error)
    for pattern in texts()["connecting"]:
        if re.search(pattern["pattern"], evidence):
            return _fill_for_target(pattern, reached, evidence)
    return host_error("unreachable", reached, error=str(error) or type(error).__name__)


def output_error(lines: Iterable[str], reached: SshTarget) -> Finding | None:
    """Return the finding for the output of a failed command; None if no pattern matches."""
    for line in reversed(list(lines)):
        for pattern in texts()["running"]:
            if re.search(pattern["pattern"], line):
                return _fill_for_target(pattern, reached, line.strip())
    return None


def command_error(error: Exception, reached: SshTarget) -> Finding:
    """Return why a command did not end."""
    evidence = _evidence(error)
    return output_error([evidence], reached) or host_error("broken_off", reached, evidence)


def unexpected_error(error: Exception, reached: SshTarget) -> Finding:
    """Return the error about an unexpected exception on one host."""
    return host_error("unexpected", reached, error=f"{type(error).__name__}: {_first_line(str(error))}")


def _fill_for_target(text: Mapping[str, str], reached: SshTarget, evidence: str, **words: Any) -> Finding:
    known = {name: getattr(reached, name) for name in ("login", "target", "forget_command", "show_keys")}
    return fill(text, reached.name, evidence, user=reached.user or "USER", **known, **words)


def _evidence(error: BaseException) -> str:
    """Return the text of an error, with the errors that paramiko hides behind "Unable to connect"."""
    tried = getattr(error.__context__, "errors", None)
    hidden = "; ".join(dict.fromkeys(map(str, tried.values()))) if isinstance(tried, dict) else ""
    words = _first_line(str(error)) or type(error).__name__
    return f"{words}: {hidden}" if hidden else words


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
