"""Hosts without SSH: testinfra through a pod on the node, which is gone when nobody looks any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from testinfra.host import Host

from gpu_provision.inventory import load
from gpu_provision.model.findings import Unreachable
from gpu_provision.model.inventory import Inventory
from gpu_provision.verify.hosts import LeftOut, host_of
from tests.cluster.conftest import kubeconfig
from tests.connectors.node_server import NodeServer, node_server

INVENTORY = """
name: test
cluster: {kubeconfig: KUBECONFIG}
connect: kubernetes
helper_pod: {image: "registry.example.com/own/tools:1", namespace: own-hosts}
pools:
  t4: {os: ubuntu22.04, gpu: {model: T4, count: 1}}
nodes:
- {name: n1, pool: t4}
"""


@pytest.fixture
def server() -> Iterator[NodeServer]:
    """An API server whose pods run their processes here."""
    with node_server() as made:
        yield made


@pytest.fixture
def inventory(server: NodeServer, tmp_path: Path) -> Inventory:
    """An inventory of its one node."""
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY.replace("KUBECONFIG", str(kubeconfig(tmp_path, server.url))))
    return load(path)


@pytest.fixture
def host(inventory: Inventory) -> Iterator[Host]:
    """The node's host."""
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
    with pytest.raises(LeftOut, match="which this account may not make"):
        host_of(inventory, "n1")


def test_a_node_that_is_not_ready_is_unreachable(server: NodeServer, inventory: Inventory) -> None:
    """No pod is made there."""
    server.ready = False
    with pytest.raises(Unreachable, match="GP690"):
        host_of(inventory, "n1")
    assert not server.made


def test_a_connection_that_breaks_later_is_told_as_such(server: NodeServer, host: Host) -> None:
    """Not as a mistake of the test."""
    server.drop = True
    with pytest.raises(Unreachable, match="GP301"):
        host.run("true")
