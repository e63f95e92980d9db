"""The hosts of a pyinfra inventory that take part in the host phase."""

from __future__ import annotations

import pytest
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State
from pyinfra.context import ctx_host, ctx_state

from gpu_provision.hosts.deploy import is_gpu_host

GPU, WEB, CLUSTER = "gpu-1", "web-1", "@cluster/lab"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [({}, {GPU, WEB}), ({"gpu": ([GPU], {})}, {GPU}), ({"web": ([WEB], {"gpu_inventory": "lab.yaml"})}, {GPU})],
    ids=["no group", "group gpu", "data of an inventory file"],
)
def test_group_gpu_decides_where_there_is_one(
    groups: dict[str, tuple[list[str], dict[str, str]]], expected: set[str]
) -> None:
    """Web servers in the same inventory lose no module; without any group, the hosts that call it are meant."""
    state = State(Inventory(([GPU, WEB, CLUSTER], {}), cluster=([CLUSTER], {}), **groups))
    meant = set()
    for host in state.inventory:
        with ctx_state.use(state), ctx_host.use(host):
            meant |= {host.name} if is_gpu_host() else set()
    assert meant == expected
