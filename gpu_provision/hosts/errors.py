"""What is wrong between us and a host, and the remedy: tables over the texts of paramiko, pyinfra, sudo and shells."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_provision.model import codes
from gpu_provision.model.findings import Finding

FILE_SYSTEM_FULL = "a file system of this host is full"


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTarget:
    """How a host is reached, as remedies have to name it; empty and zero mean as the user's SSH configuration says."""

    name: str
    address: str = ""
    port: int = 0
    user: str = ""
    key: str = ""
    known_hosts: str = ""

    @property
    def login(self) -> str:
        """What ssh and ssh-copy-id are given."""
        port = f"-p {self.port} " if self.port else ""
        return f"{port}{shlex.quote(f'{self.user}@{self.target}' if self.user else self.target)}"

    @property
    def target(self) -> str:
        """The address, or the name where it is the address."""
        return self.address or self.name

    @property
    def forget(self) -> str:
        """The command that forgets the host's key."""
        file = f"-f {shlex.quote(self.known_hosts)} " if self.known_hosts else ""
        entry = f"'[{self.target}]:{self.port}'" if self.port not in {0, 22} else self.target
        return f"ssh-keygen {file}-R {entry}"

    @property
    def show_keys(self) -> str:
        """The command that shows the host's keys, for people to compare."""
        return f"ssh-keyscan {f'-p {self.port} ' if self.port else ''}{self.target} | ssh-keygen -lf -"


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """What is seen, and what it means. Texts may name attributes of Reached in braces."""

    pattern: str
    code: str
    what: str
    fix: str


LOG_IN = "see what `ssh {reached.login} true` says"

CONNECTING = (
    ErrorPattern(
        r"Host key for .* does not match",
        codes.HOST_KEY,
        "this host shows another SSH key than before: it was reinstalled, or it is another machine",
        "compare `{reached.show_keys}` with the key on the host's own console; if it is right: {reached.forget}",
    ),
    ErrorPattern(
        r"No host key for .* found",
        codes.HOST_KEY,
        "this host's SSH key is unknown, and strict checking refuses unknown keys",
        "compare `{reached.show_keys}` with the key on the host's own console, then log in once: ssh {reached.login}",
    ),
    ErrorPattern(
        r"No such private key file|Invalid private key file|Private key file .* is encrypted",
        codes.LOGIN_REFUSED,
        "the private key for this host cannot be used",
        "name a key file without a passphrase as ssh.key in the inventory, or load it with ssh-add and name none",
    ),
    ErrorPattern(
        r"^Authentication error|^SSH error .*(No authentication methods|not a valid .* private key)",
        codes.LOGIN_REFUSED,
        "this host does not let us in",
        "ssh-copy-id {reached.login}, or name the right user and key as ssh.user and ssh.key in the inventory",
    ),
    ErrorPattern(
        r"^Could not resolve hostname",
        codes.NAME_UNKNOWN,
        "the address of {reached.target} is unknown",
        "write the host's address into the inventory (nodes[].address), or its name into DNS",
    ),
    ErrorPattern(
        r"^SSH error .*reading SSH protocol banner|^EOF error",
        codes.NO_SSH,
        "what answers there is no SSH server, or it hangs up on us (MaxStartups, fail2ban, a port for something else)",
        LOG_IN + "; on the host: journalctl -u ssh",
    ),
    ErrorPattern(
        r"^SSH error .*(No existing session|Timeout|timeout)",
        codes.HOST_SILENT,
        "this host takes the connection and then says nothing: it hangs, or is starved of memory or disk",
        LOG_IN + "; if that hangs, too, look at the host's console",
    ),
    ErrorPattern(
        r"^Could not connect",
        codes.NO_SSH,
        "no SSH server answers at {reached.target}",
        "is the host up, is sshd running, are address and port right? " + LOG_IN,
    ),
)
"""Of an attempt to connect; the first that fits."""

RUNNING = (
    ErrorPattern(
        r"sudo(-rs)?: (a password is required|interactive authentication is required)",
        codes.SUDO,
        "sudo wants a password on this host",
        "allow it without one (as root: echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/gpu-provision), "
        "or connect as root (ssh.user: root)",
    ),
    ErrorPattern(
        r"sudo.*(incorrect password|no password was provided|incorrect authentication)",
        codes.SUDO,
        "sudo does not take the password on this host",
        "give the password of {user}, or allow sudo without one",
    ),
    ErrorPattern(
        r"is not in the sudoers file|is not allowed to (execute|run sudo)|I'm sorry .*I'm afraid I can't do that",
        codes.SUDO,
        "sudo refuses us on this host",
        "as root: echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/gpu-provision; "
        "or connect as root (ssh.user: root)",
    ),
    ErrorPattern(
        r"sudo: (command )?not found|sudo: No such file",
        codes.SUDO,
        "this host has no sudo",
        "install it, or connect as root (ssh.user: root), or set ssh.sudo: false if {user} may do all this",
    ),
    ErrorPattern(
        r"^sudo: .*(must have a tty|nosuid|must be owned by uid 0|error in .*sudoers|no valid sudoers sources)",
        codes.SUDO,
        "sudo does not work on this host",
        "mend it (visudo -c shows mistakes; Defaults !requiretty), or connect as root (ssh.user: root)",
    ),
    ErrorPattern(
        r"No space left on device|Disk quota exceeded",
        codes.CANNOT_WRITE,
        FILE_SYSTEM_FULL,
        "make room (df -h and df -i show where), then run again",
    ),
    ErrorPattern(
        r"I/O error|Input/output error",  # dash calls it so when a disk is full
        codes.CANNOT_WRITE,
        "this host cannot write: a file system is full, or its disk is broken",
        "df -h and df -i show what is full, dmesg which disk has errors; then run again",
    ),
    ErrorPattern(
        r"Read-only file system",
        codes.CANNOT_WRITE,
        "a file system of this host takes no writes: the kernel makes it read-only after errors of its disk",
        "see dmesg and `grep ' ro,' /proc/mounts` on the host",
    ),
)
"""Of a command that failed; the first that fits, over the lines from the last to the first."""


def connect_error(error: BaseException, reached: SshTarget) -> Finding:
    """Return why the connection failed."""
    evidence = _evidence(error)
    for symptom in CONNECTING:
        if re.search(symptom.pattern, evidence):
            return _finding(symptom, reached, evidence)
    return Finding(
        code=codes.NO_CONNECTION,
        what=f"this host cannot be reached: {str(error) or type(error).__name__}",
        where=reached.name,
    )


def output_error(lines: Iterable[str], reached: SshTarget) -> Finding | None:
    """Return what a command that failed says about its host; None if it says nothing that is known here."""
    for line in reversed(list(lines)):
        for symptom in RUNNING:
            if re.search(symptom.pattern, line):
                return _finding(symptom, reached, line.strip())
    return None


def command_error(error: Exception, reached: SshTarget) -> Finding:
    """Return why a command came to no end."""
    evidence = _evidence(error)
    return output_error([evidence], reached) or Finding(
        code=codes.NO_CONNECTION,
        what="the connection to this host broke off",
        where=reached.name,
        evidence=evidence,
        consequence="the command that ran there may have been done in part; the next run goes on from where it stands",
        fix=LOG_IN.format(reached=reached) + ", then run again",
    )


def connection_lost(reached: SshTarget) -> Finding:
    """Return the error about a command whose connection went away without a word."""
    return command_error(ConnectionError("the connection ended in the middle of a command"), reached)


def host_silent(reached: SshTarget, seconds: int) -> Finding:
    """Return the error about a host that was given up."""
    return Finding(
        code=codes.HOST_SILENT,
        what=f"this host has not answered for {seconds} s in the middle of a command, and was given up",
        where=reached.name,
        evidence="its SSH server did not answer any question about whether it is there",
        consequence="what the command did before is unknown until the next run, which goes on from where it stands",
        fix="look at the host's console (it hangs, or the network does); then run again",
    )


def unexpected_error(error: Exception, reached: SshTarget) -> Finding:
    """Return the error about an unexpected exception on one host."""
    return Finding(
        code=codes.UNEXPECTED_ERROR,
        what=f"this host cannot be worked on: {type(error).__name__}: {_first(str(error))}",
        where=reached.name,
        fix="if what it says is no help, please report it: it is a mistake in gpu-provision, or an unusual answer",
    )


def step_failed(title: str, evidence: str, reached: SshTarget) -> Finding:
    """Return the error about a step whose command failed for a reason of its own."""
    return Finding(
        code=codes.COMMAND_FAILED,
        what=f"a command failed: {title}",
        where=reached.name,
        evidence=evidence,
        fix="pyinfra INVENTORY deploys/host_prerequisites.py -vv --limit HOST shows every command with its output",
    )


def unreadable(name: str) -> Finding:
    """Return the error about a host whose state could not be read, for an unknown reason."""
    return Finding(
        code=codes.UNREADABLE,
        what="the state of this host could not be read",
        where=name,
        fix="see what its shell printed above; it needs a POSIX shell with uname, sed, grep and find",
    )


def outcome_unknown(reached: SshTarget) -> Finding:
    """Return the error about a host that could not be read after the run: it may be as declared, or not."""
    return Finding(
        code=codes.UNREADABLE,
        what="this host could not be read after the run, so it is not known whether it is as declared",
        where=reached.name,
        fix=LOG_IN.format(reached=reached) + ", then run again",
    )


def not_finished(reached: SshTarget) -> Finding:
    """Return the error about a host on which not all was done."""
    return Finding(
        code=codes.UNEXPECTED_ERROR,
        what="the host phase ended before this host was finished",
        where=reached.name,
        fix="run again: it goes on from where things stand",
    )


def _finding(symptom: ErrorPattern, reached: SshTarget, evidence: str) -> Finding:
    words = {"reached": reached, "user": reached.user or "USER"}
    return Finding(
        code=symptom.code,
        what=symptom.what.format(**words),
        where=reached.name,
        evidence=evidence,
        fix=symptom.fix.format(**words),
    )


def _evidence(error: BaseException) -> str:
    """Return the words of an error, with what paramiko hides behind "Unable to connect"."""
    tried = getattr(error.__context__, "errors", None)
    hidden = "; ".join(dict.fromkeys(map(str, tried.values()))) if isinstance(tried, dict) else ""
    words = _first(str(error)) or type(error).__name__
    return f"{words}: {hidden}" if hidden else words


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
