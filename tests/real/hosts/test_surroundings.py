"""Proxies and certificates on a host with systemd: its containerd has them, and has them taken back.

The tests go on from one another in their order.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.answers import Answer, failures
from tests.contract.client import Server
from tests.real.hosts import nspawn, state
from tests.real.hosts.nspawn import NspawnHost, nspawn_hosts
from tests.real.hosts.user import User

pytestmark = pytest.mark.hosts

PASSWORD = "s3c%ret/w$rd"  # noqa: S105 - of no account
SHOWN = "s3c%25ret%2Fw%24rd"
ENV = "/etc/gpu-provision/runtime-proxy.env"
DROP_IN = "/etc/systemd/system/containerd.service.d/90-gpu-provision-proxy.conf"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PROXY = {
    "http_proxy": "",
    "https_proxy": "http://proxy.example.com:3128",
    "no_proxy": "10.0.0.0/8,.example.com",
    "credentials_file": "../proxy-credentials",
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NspawnHost]:
    if reason := nspawn.missing():
        pytest.skip(reason)
    with nspawn_hosts(tmp_path_factory.mktemp("surroundings"), 1) as (host,):
        (host.root / "var/lib/kubelet").mkdir()
        (host.root / "var/lib/kubelet/kubeconfig").touch()
        yield host


@pytest.fixture(scope="module")
def as_it_came(host: NspawnHost) -> set[str]:
    """All that is in /etc before the first run, but for the store of certificates, which is made again."""
    return _contents(host)


def _contents(host: NspawnHost) -> set[str]:
    made = ("/etc/ssl/certs", "/etc/ca-certificates")
    return {line for line in state.contents(state.of(host)) if not line.startswith(made)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of an authority, and of a registry that it has signed; the file with the proxy's credentials."""
    folder = tmp_path_factory.mktemp("owner")
    key = ["-newkey", "rsa:2048", "-nodes", "-days", "30"]
    _openssl(folder, "req", "-x509", *key, "-subj", "/CN=Site", "-keyout", "ca.key", "-out", "ca.pem")
    _openssl(folder, "req", *key[:3], "-subj", "/CN=registry", "-keyout", "registry.key", "-out", "registry.csr")
    signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-set_serial", "1"]
    _openssl(folder, "x509", "-req", "-in", "registry.csr", *signer, "-out", "registry.pem")
    (folder / "proxy-credentials").write_text(f"me:{PASSWORD}\n")
    return folder


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


Owner = Callable[..., User]


@pytest.fixture(scope="module")
def owner(host: NspawnHost, as_it_came: set[str], cluster: Server, site: Path) -> Owner:
    """Return the host's owner by a name, with prerequisites; the host is reached through sudo."""
    assert as_it_came

    def named(name: str, **prerequisites: object) -> User:
        settings = {"blacklist_nouveau": False, "kernel_modules": [], "runtime_imports": False, **prerequisites}
        made = User(site / name, (host,), cluster.kubeconfig, {"host_prerequisites": settings})
        made.inventory.write_text(made.inventory.read_text().replace("user: root", "user: admin"))
        return made

    return named


@pytest.fixture(scope="module")
def user(owner: Owner) -> User:
    """A user behind a proxy, whose registry has a certificate of the site's own authority."""
    return owner("behind-proxy", proxy=PROXY, ca_certificates=["../ca.pem"])


@pytest.fixture(scope="module")
def first_run(user: User) -> Answer:
    return user.apply("--hosts-only")


def test_a_dry_run_shows_the_change_and_no_password(user: User, host: NspawnHost) -> None:
    said = user.pyinfra("host_prerequisites.py", "--dry", "--diff", "-vvv")
    assert said.code == 0, said.text
    assert "proxy.example.com:3128" in said.text
    assert PASSWORD not in said.text
    assert SHOWN not in said.text
    assert not state.of(host).file(ENV).exists


def test_only_containerd_sees_the_password_of_the_proxy(first_run: Answer, host: NspawnHost) -> None:
    """It is restarted once; an ordinary user finds the password neither in files nor with systemd."""
    assert first_run.code == 0, first_run.text
    assert first_run.changes == [
        [
            f"images pulled through a proxy: https_proxy={PROXY['https_proxy']}, no_proxy={PROXY['no_proxy']}",
            "certificates trusted besides the system's own: 1",
            "containerd restarted",
        ]
    ]
    assert SHOWN not in first_run.text
    variables = host.run("tr '\\0' '\\n' </proc/$(systemctl show --value -p MainPID containerd)/environ").splitlines()
    assert f"HTTPS_PROXY=http://me:{SHOWN}@proxy.example.com:3128" in variables
    assert "NO_PROXY=10.0.0.0/8,.example.com" in variables
    file = state.of(host).file(ENV)
    assert (file.user, file.mode) == ("root", 0o600)
    look = f"cat {ENV} {DROP_IN}; systemctl show containerd; systemctl cat containerd"
    seen = host.run(f"su admin -c '{look}' 2>&1; true")
    assert "EnvironmentFile" in seen
    assert SHOWN not in seen
    assert host.run(f"grep -rlF '{SHOWN}' /etc /run /var /tmp 2>/dev/null; true").splitlines() == [ENV]


@pytest.mark.usefixtures("first_run")
def test_the_host_trusts_what_the_authority_has_signed(host: NspawnHost, site: Path) -> None:
    (host.root / "root/registry.pem").write_bytes((site / "registry.pem").read_bytes())
    assert host.run(f"openssl verify -CAfile {BUNDLE} /root/registry.pem") == "/root/registry.pem: OK"


@pytest.mark.usefixtures("first_run")
def test_second_run_changes_nothing_and_restarts_nothing(user: User, host: NspawnHost) -> None:
    before = state.written(state.of(host)), _start_of_containerd(host)
    assert user.apply("--hosts-only").changes == [[]]
    said = user.pyinfra("host_prerequisites.py").text
    assert said.count("No changes") == said.count("Starting operation") > 0, said
    assert (state.written(state.of(host)), _start_of_containerd(host)) == before


@pytest.mark.usefixtures("first_run")
def test_acceptance_tests_pass_and_name_what_is_not_as_declared(user: User, host: NspawnHost, tmp_path: Path) -> None:
    """They share no code with the run; each check is a test case of the JUnit file."""
    report = tmp_path / "verified.xml"
    passed = user.cli("verify", "--hosts-only", "--junit", str(report))
    assert passed.code == 0, passed.text
    assert failures(report) == {}
    host.run("touch /run/reboot-required")
    failed = user.cli("verify", "--hosts-only", "--junit", str(report))
    host.run("rm /run/reboot-required")
    assert failed.code == 1, failed.text
    ((name, why),) = failures(report).items()
    assert name == f"test_no_reboot_is_pending[{host.name}]"
    assert "/run/reboot-required exists" in why


def _start_of_containerd(host: NspawnHost) -> str:
    """Return what changes when systemd restarts it."""
    return host.run("systemctl show --value --property InvocationID containerd")


BREAKS = "/etc/systemd/system/containerd.service.d/99-test.conf"


@pytest.mark.usefixtures("first_run")
def test_a_dead_containerd_gets_its_settings_restored(host: NspawnHost, owner: Owner) -> None:
    """It dies of one proxy; the files of the run before are back to the byte, and it answers."""
    condition = "ExecStartPre=/bin/sh -c '! grep -q other /proc/self/environ'"
    host.run(f"printf '[Service]\\n%s\\n' \"{condition}\" >{BREAKS} && systemctl daemon-reload")
    before = _contents(host)
    said = owner("other", proxy={**PROXY, "https_proxy": "http://other.example.com:1"}).apply("--hosts-only")
    assert said.code == 1, said.text
    error = said.errors["GP672", host.name]
    assert "all files are as they were" in error["what"]
    assert SHOWN not in said.text
    assert _contents(host) == before
    assert host.run("systemctl is-active containerd") == "active"
    host.run(f"rm {BREAKS} && systemctl daemon-reload")


@pytest.mark.usefixtures("first_run")
def test_what_is_no_longer_declared_goes(host: NspawnHost, owner: Owner) -> None:
    """The certificate is trusted no more, and containerd is restarted without a proxy."""
    bare = owner("without-proxy")
    said = bare.apply("--hosts-only")
    assert said.code == 0, said.text
    assert "images no longer pulled through our proxy" in said.changes[0]
    variables = host.run("tr '\\0' '\\n' </proc/$(systemctl show --value -p MainPID containerd)/environ")
    assert "PROXY" not in variables
    assert "error" in host.run(f"openssl verify -CAfile {BUNDLE} /root/registry.pem 2>&1; true")
    assert bare.apply("--hosts-only").changes == [[]]


@pytest.mark.usefixtures("first_run")
def test_teardown_takes_proxy_and_certificates_back(host: NspawnHost, user: User, as_it_came: set[str]) -> None:
    trusted = host.run(f"sha256sum {BUNDLE}")
    run = user.pyinfra("host_prerequisites.py", "-y", "-vvv")
    assert run.code == 0, run.text
    assert SHOWN not in run.text, "pyinfra prints what it sends"
    assert host.run(f"sha256sum {BUNDLE}") != trusted
    before = _start_of_containerd(host)
    said = user.pyinfra("host_teardown.py")
    assert said.code == 0, said.text
    assert _contents(host) == as_it_came
    assert host.run(f"sha256sum {BUNDLE}") == trusted
    assert not state.of(host).file("/var/lib/gpu-provision").exists
    assert _start_of_containerd(host) != before
    assert host.run("systemctl is-active containerd") == "active"
