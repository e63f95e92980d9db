"""How hosts are reached: what the inventory says, and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from testinfra.host import Host

from gpu_provision.inventory import load
from gpu_provision.model.findings import UnreachableError
from gpu_provision.model.inventory import Inventory
from gpu_provision.verify.checks.hosts import is_blacklisted
from gpu_provision.verify.hosts import SkippedHostError, host_of
from tests import data_file
from tests.connectors.node_server import NodeServer, node_server
from tests.kube.conftest import kubeconfig

HERE = Path(__file__).parent


@pytest.fixture
def over_ssh(tmp_path: Path) -> Path:
    path = tmp_path / "ssh.yaml"
    (tmp_path / "id").touch(0o600)
    path.write_text((HERE / "over_ssh.yaml").read_text().replace("KEYS", str(tmp_path)))
    return path


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh that writes its arguments down, then does what a test puts into ``answer``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/asked\n[ ! -e {folder}/answer ] || . {folder}/answer\n'
    )
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def asked(fake_ssh: Path) -> list[str]:
    return (fake_ssh / "asked").read_text().splitlines()


def test_ssh_gets_the_inventorys_settings(over_ssh: Path, fake_ssh: Path) -> None:
    """User, port, key, known hosts; never a question; sudo, as a login of an ordinary user needs it."""
    host_of(load(over_ssh), "gpu-1").run("cat %s", "a b")
    words = asked(fake_ssh)
    options = {"User=admin", "Port=2222", f"UserKnownHostsFile={over_ssh.parent}/known hosts", "BatchMode=yes"}
    assert options <= set(words)
    assert words[words.index("-i") + 1] == str(over_ssh.parent / "id")
    assert words[-2] == "192.0.2.7"
    assert shlex.split(words[-1]) == ["sudo", "/bin/sh", "-c", "cat 'a b'"]


def test_root_needs_no_sudo_and_addresses_may_be_ipv6(over_ssh: Path, fake_ssh: Path) -> None:
    """Colons in them are no port."""
    host_of(load(over_ssh), "gpu-2").run("true")
    assert asked(fake_ssh)[-2:] == ["2001:db8::7", "true"]


def test_bastions_are_those_of_the_host_phase(over_ssh: Path, fake_ssh: Path) -> None:
    """Through the same SSH configuration file."""
    host_of(load(over_ssh), "gpu-3")
    words = asked(fake_ssh)
    assert "ProxyJump jump@bastion.example" in Path(words[words.index("-F") + 1]).read_text()


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (
            "cluster: {context: prod, platform: openshift}",
            "Machine Config Operator prepares .* gpu-provision status -i",
        ),
        ("cluster: {context: prod}\nhost_prerequisites: {enabled: false}", "^its host_prerequisites are off$"),
    ],
)
def test_a_host_without_a_host_phase_is_skipped_with_the_reason(over_ssh: Path, declared: str, why: str) -> None:
    over_ssh.write_text(over_ssh.read_text().replace("cluster: {context: prod}", declared))
    with pytest.raises(SkippedHostError, match=why):
        host_of(load(over_ssh), "gpu-1")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("echo 'ssh: connect to host: No route to host' >&2; exit 255", "No route to host"),
        ("printf '\\303\\251chec\\n' >&2; exit 255", "échec"),
        ("echo 'sudo: a password is required' >&2; exit 1", "sudo: a password is required"),
        ("exit 255", "no word of why"),
    ],
)
def test_host_that_cannot_be_logged_in_to_says_why(over_ssh: Path, fake_ssh: Path, answer: str, why: str) -> None:
    """In the last words of ssh or sudo, whatever their language."""
    (fake_ssh / "answer").write_text(f"{answer}\n")
    with pytest.raises(UnreachableError, match=why):
        host_of(load(over_ssh), "gpu-1")


def test_a_later_connection_failure_reads_the_same(over_ssh: Path, fake_ssh: Path) -> None:
    """Not as a mistake of the test."""
    host = host_of(load(over_ssh), "gpu-1")
    (fake_ssh / "answer").write_text("echo 'Connection reset by peer' >&2; exit 255\n")
    with pytest.raises(UnreachableError, match="Connection reset by peer"):
        host.run("true")


def test_machine_without_ssh_says_so(over_ssh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything is tried."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreachableError, match="no ssh"):
        host_of(load(over_ssh), "gpu-1")


@pytest.fixture
def server() -> Iterator[NodeServer]:
    """An API server whose pods run their processes here."""
    with node_server() as made:
        yield made


@pytest.fixture
def inventory(server: NodeServer, tmp_path: Path) -> Inventory:
    path = tmp_path / "inventory.yaml"
    text = (HERE / "over_kubernetes.yaml").read_text()
    path.write_text(text.replace("KUBECONFIG", str(kubeconfig(tmp_path, server.url))))
    return load(path)


@pytest.fixture
def host(inventory: Inventory) -> Iterator[Host]:
    found = host_of(inventory, "n1")
    yield found
    found.backend.close()


def test_commands_run_on_the_host(host: Host, tmp_path: Path) -> None:
    """Quoted as testinfra quotes them; status and both outputs apart."""
    (tmp_path / "a file").write_text("words\n")
    done = host.run("cat %s; echo complaint >&2; exit 3", str(tmp_path / "a file"))
    assert (done.rc, done.stdout, done.stderr) == (3, "words\n", "complaint\n")
    assert host.file(str(tmp_path / "a file")).content_string == "words\n"


def test_the_pod_is_as_declared_and_goes(server: NodeServer, inventory: Inventory) -> None:
    """One for all that is asked of a host."""
    host = host_of(inventory, "n1")
    host.run("true")
    (pod,) = server.made
    assert pod["metadata"]["namespace"] == "own-hosts"
    assert pod["spec"]["containers"][0]["image"] == "registry.example.com/own/tools:1"
    host.backend.close()
    assert not server.pods


def test_an_account_that_may_make_no_pods_leaves_the_host_out(server: NodeServer, inventory: Inventory) -> None:
    """Readers can verify the cluster all the same."""
    server.forbids = True
    with pytest.raises(SkippedHostError, match="which this account may not make"):
        host_of(inventory, "n1")


@pytest.mark.parametrize("case", data_file.document((HERE / "blacklists.yaml").read_text()), ids=str)
def test_nouveau_is_kept_away_by_modprobe_or_the_kernel(case: dict[str, Any]) -> None:
    """A blacklist, or an install command that loads nothing; on the command line among others."""

    def run(command: str) -> Any:
        return SimpleNamespace(stdout=case.get("command_line" if command == "cat /proc/cmdline" else "file", ""))

    assert is_blacklisted(SimpleNamespace(run=run), "nouveau") is case["is_away"]
