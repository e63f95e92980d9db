"""Texts of pyinfra 3.10, paramiko, sudo and shells, as they were seen, and what they are taken for."""

from __future__ import annotations

import pytest
from paramiko import SSHException
from paramiko.ssh_exception import NoValidConnectionsError
from pyinfra.api.exceptions import ConnectError

from gpu_provision.hosts import errors
from gpu_provision.hosts.errors import SshTarget

HOST = SshTarget(name="gpu-1", address="10.0.0.7", port=2222, user="admin", known_hosts="/home/me/known hosts")
PLAIN = SshTarget(name="gpu-1")
CONNECTING = [
    ("SSH host key error (Host key for 10.0.0.7 does not match.)", "GP682", "-R '[10.0.0.7]:2222'"),
    ("SSH error (StrictPolicy: No host key for 10.0.0.7 found in known_hosts)", "GP682", "ssh -p 2222 admin@10.0.0.7"),
    ("Authentication error (username=admin) (Authentication failed.)", "GP683", "ssh-copy-id -p 2222 admin@10.0.0.7"),
    ("SSH error (No authentication methods available)", "GP683", "ssh-copy-id"),
    ("Could not resolve hostname ([Errno -2] Name or service not known)", "GP684", "DNS"),
    ("Could not resolve hostname ([Errno -3] Temporary failure in name resolution)", "GP684", "DNS"),
    ("Could not connect ([Errno None] Unable to connect to port 22 on 10.0.0.7)", "GP685", "is the host up"),
    ("Could not connect ([Errno 101] Network is unreachable)", "GP685", "is the host up"),
    ("Could not connect (timed out)", "GP685", "is the host up"),
    ("SSH error (Error reading SSH protocol banner)", "GP685", "journalctl -u ssh"),
    ("EOF error ()", "GP685", "journalctl -u ssh"),
    ("SSH error (No existing session)", "GP686", "console"),
    ("No such private key file: /nowhere", "GP683", "ssh.key"),
    ("Private key file (/home/me/key) is encrypted, set ssh_key_password to use this key", "GP683", "ssh-add"),
    ("the sandbox default has no node gpu-9; it has gpu-1", "GP687", ""),
]
RUNNING = [
    ("sudo: a password is required", "GP688", "NOPASSWD"),
    ("sudo-rs: interactive authentication is required", "GP688", "NOPASSWD"),
    ("admin is not in the sudoers file.", "GP688", "admin ALL=(ALL) NOPASSWD: ALL"),
    ("Sorry, user admin is not allowed to execute '/bin/sh -c true' as root on gpu-1.", "GP688", "NOPASSWD"),
    ("sudo-rs: I'm sorry admin. I'm afraid I can't do that", "GP688", "NOPASSWD"),
    ("sh: 1: sudo: not found", "GP688", "install it"),
    ("bash: line 1: sudo: command not found", "GP688", "install it"),
    ("sudo: sorry, you must have a tty to run sudo", "GP688", "requiretty"),
    ("sudo: 1 incorrect password attempt", "GP688", "password"),
    ("sudo: no password was provided", "GP688", "password"),
    ("cp: error writing '/etc/x': No space left on device", "GP689", "df -h"),
    ("sh: 3: echo: echo: I/O error", "GP689", "df -h"),
    ("sh: 3: cannot create /etc/modules-load.d/x: Read-only file system", "GP689", "dmesg"),
]


@pytest.mark.parametrize(("text", "code", "fix"), CONNECTING)
def test_failure_to_connect_has_its_own_remedy(text: str, code: str, fix: str) -> None:
    found = errors.connect_error(ConnectError(text), HOST)
    assert (found.code, found.where) == (code, "gpu-1")
    assert text in found.evidence + found.what
    assert fix in found.fix


@pytest.mark.parametrize(("text", "code", "fix"), RUNNING)
def test_failed_command_tells_about_its_host(text: str, code: str, fix: str) -> None:
    found = errors.output_error(["one line", text, "another"], HOST)
    assert found
    assert (found.code, found.evidence) == (code, text)
    assert fix in found.fix


@pytest.mark.parametrize("text", ["sudo: unable to resolve host gpu-1: Name or service not known", "E: no package"])
def test_unknown_output_is_left_to_the_operation(text: str) -> None:
    """Sudo's warning about a name is none of a refusal."""
    assert errors.output_error([text], HOST) is None


def test_the_cause_of_a_refused_port_is_named() -> None:
    """Paramiko keeps it to itself."""
    hidden = NoValidConnectionsError({("10.0.0.7", 22): ConnectionRefusedError(111, "Connection refused")})
    error = ConnectError(f"Could not connect ({hidden})")
    error.__context__ = hidden
    assert "[Errno 111] Connection refused" in errors.connect_error(error, HOST).evidence


def test_commands_in_remedies_can_be_pasted() -> None:
    """With quotes, port and user where they are declared; without where they are not."""
    mismatch = ConnectError("SSH host key error (Host key for gpu-1 does not match.)")
    assert "ssh-keygen -f '/home/me/known hosts' -R '[10.0.0.7]:2222'" in errors.connect_error(mismatch, HOST).fix
    assert "ssh-keygen -R gpu-1" in errors.connect_error(mismatch, PLAIN).fix


def test_broken_connection_says_that_a_command_may_be_half_done() -> None:
    found = errors.command_error(SSHException("SSH session not active"), HOST)
    assert (found.code, found.evidence) == ("GP687", "SSH session not active")
    assert "in part" in found.consequence
