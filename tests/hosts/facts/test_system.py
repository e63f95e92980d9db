"""Proxies are known, their users and passwords never."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_provision.hosts.facts.host import command, parse
from gpu_provision.hosts.facts.system import Clock, System, clock_of, without_credentials
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts.spec import HostSpec

FILES = {
    "/etc/environment": 'http_proxy="http://jane:s3cret@proxy.example.com:3128"\nhttps_proxy=jane:s3cr/et@proxy:3128\n'
    "HTTPS_PROXY=http://DOM%5Cjane:s3c@ret@proxy.example.com:3128/\nno_proxy=10.0.0.0/8\n",
    "/etc/systemd/system/containerd.service.d/p.conf": '[Service]\nEnvironment="HTTP_PROXY=http://jane:s3cret@proxy:1"\n',
    "/etc/apt/apt.conf.d/90proxy": 'Acquire::http::Proxy "http://jane:s3cret@proxy:3128/";\n',
    "/etc/dnf/dnf.conf": "proxy=http://proxy:8080\nproxy_username=jane\nproxy_password=s3cret\n",
}


def test_credentials_stay_on_the_host(sandbox: Path) -> None:
    host = hosts.ensure(HostSpec(name="p"), sandbox)
    for path, content in FILES.items():
        (host.directory / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (host.directory / path.lstrip("/")).write_text(content)
    done: subprocess.CompletedProcess[bytes] = hosts.run(host, command())
    output = done.stdout.decode()
    assert not [line for line in output.splitlines() if "jane" in line or "s3c" in line or "ret@" in line]
    record = parse(output.splitlines())
    assert record
    assert set(record.proxies.values_of("http_proxy")) == {
        "http://proxy.example.com:3128",
        "http://proxy:1",
        "http://proxy:3128/",
        "http://proxy:8080",
    }
    assert record.proxies.values_of("https_proxy") == ("proxy:3128", "http://proxy.example.com:3128/")
    assert record.proxies.values_of("no_proxy") == ("10.0.0.0/8",)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("http://u:p@proxy:1", "http://proxy:1"),
        ("u:p@proxy:1", "proxy:1"),
        ("u@proxy:1", "proxy:1"),
        ("http://u:p/q@proxy:1/", "http://proxy:1/"),
        ("http://proxy:1", "http://proxy:1"),
        ("10.0.0.0/8,.svc", "10.0.0.0/8,.svc"),
    ],
)
def test_credentials_that_got_through_are_dropped_here(value: str, kept: str) -> None:
    """The host's own sed may be one that we do not know."""
    assert without_credentials(value) == kept


@pytest.mark.parametrize(
    ("host", "asked", "answered", "skew"),
    [
        (1000, 1000.2, 1000.9, 0),  # the same second
        (1000, 1000.9, 1030.0, 0),  # a slow answer explains it
        (1000, 1001.5, 1002.0, -0.5),  # cut to a second, it may have been 1000.99
        (1010, 1000.0, 1001.0, 9),
        (400, 1000.0, 1001.0, -599),
    ],
)
def test_skew_is_what_is_left_at_least(host: int, asked: float, answered: float, skew: float) -> None:
    """The host's time is cut to whole seconds, and was read at some moment of the round trip."""
    clock = clock_of(System(time=host), asked, answered)
    assert clock.skew == pytest.approx(skew)
    assert clock.compared


def test_no_answer_where_the_host_was_not_read() -> None:
    """A recorded output has no round trip, and a host may not tell the time."""
    assert clock_of(System(time=1000), 0.0, 0.0) == Clock()
    assert clock_of(System(), 1.0, 2.0) == Clock()
    assert clock_of(None, 1.0, 2.0) == Clock()
