"""Failures of one host: each is one finding with its fix, and the other hosts finish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.hosts.runner import prepare
from gpu_provision.model.findings import Finding
from gpu_provision.model.progress import Event
from tests.hosts.ssh_server import Conduct
from tests.hosts.ssh_site import site

MODULES = "modprobe -a"
LAST_LOOK = r"read_sections (?!.*\bsettings\b).*\bpci\b"  # preflight reads more, operations less
CONDUCTS = {
    "good": Conduct(),
    "stranger": Conduct(),  # shows another key than is known
    "closed": Conduct(),  # its port is
    "unwelcome": Conduct(lets_in=False),
    "password": Conduct(password="secret"),  # noqa: S106 - of a test server
    "forbidden": Conduct(sudo_says="admin is not in the sudoers file.\n"),
    "full": Conduct(cannot_write="sh: 12: cannot create /etc/x: No space left on device\n"),
    "hangs": Conduct(hangs_at=MODULES),
    "dies": Conduct(dies_at=MODULES),
    "vanishes": Conduct(dies_at=LAST_LOOK),
}


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return []


@pytest.fixture(scope="module")
def result(simulated: Path, events: list[Event]) -> Iterator[HostsResult]:
    """One run over hosts of which all but one misbehave."""
    with site(simulated, CONDUCTS) as here:
        here.servers["stranger"].key = paramiko.ECDSAKey.generate()
        here.servers["closed"].close()
        yield prepare(here.inventory, listen=events.append)


def of(result: HostsResult, name: str) -> HostOutcome:
    return next(host for host in result.hosts if host.name == name)


def finding(result: HostsResult, name: str) -> Finding:
    (found,) = of(result, name).errors
    assert found.where == name
    assert found.fix
    return found


def test_the_good_host_is_finished(result: HostsResult) -> None:
    assert "kernel modules loaded: ipmi_msghandler" in of(result, "good").changes
    assert [host.name for host in result.hosts if not host.failed] == ["good"]


@pytest.mark.parametrize(
    ("name", "code", "evidence", "fix"),
    [
        ("stranger", "GP682", "Host key for 127.0.0.1 does not match", "-R '[127.0.0.1]:"),
        ("closed", "GP685", "Connection refused", "is sshd running"),
        ("unwelcome", "GP683", "Authentication", "ssh-copy-id -p "),
        ("password", "GP688", "sudo: a password is required", "admin ALL=(ALL) NOPASSWD: ALL"),
        ("forbidden", "GP688", "admin is not in the sudoers file", "admin ALL=(ALL) NOPASSWD: ALL"),
        ("full", "GP689", "No space left on device", "df -h"),
        ("hangs", "GP686", "did not answer", "console"),
        ("dies", "GP687", "ended in the middle", "run again"),
        ("vanishes", "GP602", "", "run again"),
    ],
)
def test_each_failure_is_one_finding_with_its_remedy(
    result: HostsResult, name: str, code: str, evidence: str, fix: str
) -> None:
    found = finding(result, name)
    assert (found.code, of(result, name).failed) == (code, True)
    assert evidence in found.evidence
    assert fix in found.fix


def test_an_unobserved_host_is_not_ready(result: HostsResult) -> None:
    vanished = of(result, "vanishes")
    assert vanished.changes == of(result, "good").changes
    assert vanished.failed
    assert "not known" in finding(result, "vanishes").what


def test_a_wait_is_logged_with_the_component(result: HostsResult, events: list[Event]) -> None:
    assert result.failed
    told = [event.message for event in events if event.node == "hangs"]
    assert told[0] == "connecting"
    assert [message for message in told if "given up after 2 s" in message]
