"""Deploys that work on a cluster host, in runs that have none."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyinfra
import pytest
from gevent import GreenletExit
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State, StateStage
from pyinfra.context import ctx_host, ctx_state

from gpu_provision.deploys import gpu_stack
from gpu_provision.deploys.cluster import is_cluster_host
from tests.deploys.conftest import Pyinfra

CLUSTER = "@cluster/lab"


@pytest.fixture
def state() -> Iterator[State]:
    """A run on one host and a cluster host whose data name no inventory."""
    made = State(Inventory((["@local", CLUSTER], {}), cluster=([CLUSTER], {})))
    with ctx_state.use(made):
        yield made


def test_inventory_without_a_cluster_host_is_an_error(tmp_path: Path, pyinfra: Pyinfra) -> None:
    """It says what to add to the inventory, and which deploy is for hosts alone."""
    (tmp_path / "alone.py").write_text("from gpu_provision.deploys import gpu_stack\n\ngpu_stack()\n")
    (tmp_path / "local.py").write_text('hosts = ["@local"]\n')
    done = pyinfra("", "--dry", command=("alone.py",), inventory="local.py")
    assert done.returncode == 1
    assert "GP618: gpu_stack() needs a cluster host, and pyinfra's inventory has none" in done.stdout
    assert 'add cluster = [("@cluster/CONTEXT", {"gpu_inventory": ' in done.stdout
    assert "call host_prerequisites() without gpu_stack()" in done.stdout


def test_limit_without_the_cluster_host_is_one_warning(state: State, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is wrong with it, so the run goes on; every host of a run calls the deploy."""
    local = state.inventory.get_host("@local")
    state.limit_hosts = [local]
    with caplog.at_level(logging.WARNING, "pyinfra"), ctx_host.use(local):
        assert [is_cluster_host("gpu_stack") for _ in range(3)] == [False] * 3
    said = (
        f"--> gpu_stack() does nothing: {CLUSTER} excluded by --limit or --exclude; to include it, add --limit cluster"
    )
    assert caplog.messages == [said]


def test_cluster_host_that_cannot_be_planned_leaves_the_run(
    state: State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as without the path of an inventory file; pyinfra's command ends a greenlet of a host, and no other."""
    monkeypatch.setattr(pyinfra, "is_cli", True)
    state.set_stage(StateStage.Prepare)
    cluster = state.inventory.get_host(CLUSTER)
    state.active_hosts = set(state.inventory)
    with caplog.at_level(logging.ERROR, "pyinfra"), ctx_host.use(cluster), pytest.raises(GreenletExit):
        gpu_stack()
    assert state.failed_hosts == {cluster}
    assert [host.name for host in state.active_hosts] == ["@local"]
    assert f"GP619 {CLUSTER}: the data of the cluster host has no gpu_inventory" in caplog.messages[0]
    assert '"gpu_inventory": ' in caplog.messages[1]
