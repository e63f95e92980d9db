"""Findings for error messages of pyinfra, paramiko, sudo and shells; see test_errors.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest
from paramiko import SSHException
from paramiko.ssh_exception import NoValidConnectionsError
from pyinfra.api.exceptions import ConnectError

from gpu_provision.hosts import errors
from gpu_provision.hosts.errors import SshTarget
from tests import data_file

HOST = SshTarget(name="gpu-1", address="10.0.0.7", port=2222, user="admin", known_hosts="/home/me/known hosts")
PLAIN = SshTarget(name="gpu-1")
CASES = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


@pytest.mark.parametrize(("text", "code", "fix"), CASES["connecting"])
def test_failure_to_connect_has_its_own_remedy(text: str, code: str, fix: str) -> None:
    found = errors.connect_error(ConnectError(text), HOST)
    assert (found.code, found.where) == (code, "gpu-1")
    assert text in found.evidence + found.what
    assert fix in found.fix


@pytest.mark.parametrize(("text", "code", "fix"), CASES["running"])
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


def test_a_broken_connection_leaves_an_incomplete_command() -> None:
    found = errors.command_error(SSHException("SSH session not active"), HOST)
    assert (found.code, found.evidence) == ("GP687", "SSH session not active")
    assert "incomplete" in found.consequence
