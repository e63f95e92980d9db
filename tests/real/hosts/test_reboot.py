"""Hosts with systemd that the product itself reboots: one is a node of a cluster, the other is none."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.answers import Answer
from tests.contract.client import Event, Object, Server
from tests.real.hosts import nspawn, state
from tests.real.hosts.nspawn import NspawnHost, nspawn_hosts
from tests.real.hosts.user import User

pytestmark = pytest.mark.hosts

NODE = "reboot-01"
SETTINGS = {"host_prerequisites": {"kernel_modules": ["i2c_core"], "reboot": "if-required", "reboot_timeout": 300}}
CORDONED = "gpu-provision.io/cordoned"
REASON = "rebooted: the system itself asks for one (/run/reboot-required)"
Run = tuple[Answer, User, list[Event], list[str]]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NspawnHost, ...]]:
    if reason := nspawn.missing():
        pytest.skip(reason)
    with nspawn_hosts(tmp_path_factory.mktemp("rebooted"), 2, name="reboot") as begun:
        for host in begun:
            host.run("touch /run/reboot-required")
        yield begun


def boot_of(host: NspawnHost) -> str:
    """Return the boot that a host is in; empty while it does not answer."""
    return host.run("cat /proc/sys/kernel/random/boot_id", check=False)


@contextlib.contextmanager
def played(cluster: Server, host: NspawnHost) -> Iterator[list[Event]]:
    """Report a host's boots to the cluster as its kubelet would; what became of the node is there in the end."""
    path, over, seen = f"/api/v1/nodes/{host.name}", threading.Event(), list[Event]()
    cluster.make("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": host.name}})

    def tell(**annotations: str) -> None:
        cluster.patch(path, {"metadata": {"annotations": annotations}})

    def play() -> None:
        while not over.wait(0.5):
            tell(tick=str(time.monotonic()))  # a client gives a silent watch up
            if boot := boot_of(host):
                cluster.patch(f"{path}/status", {"status": _status(boot)})
        cluster.close()  # each thread has a connection of its own

    with cluster.watch(f"/api/v1/nodes?fieldSelector=metadata.name={host.name}") as events:
        watching = threading.Thread(target=lambda: seen.extend(events.until(_is_over)))
        kubelet = threading.Thread(target=play)
        watching.start()
        kubelet.start()
        try:
            yield seen
        finally:
            over.set()
            kubelet.join()
            tell(over="yes")
            watching.join()


def _is_over(event: Event) -> bool:
    return "over" in event.object["metadata"].get("annotations", {})


def _status(boot: str) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"nodeInfo": {"bootID": boot}, "conditions": [ready]}


@pytest.fixture(scope="module")
def run(hosts: tuple[NspawnHost, ...], cluster: Server, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One apply: what it said, whose it was, what became of the node meanwhile, and the boots before."""
    before = [boot_of(host) for host in hosts]
    user = User(tmp_path_factory.mktemp("owner"), hosts, cluster.kubeconfig, SETTINGS)
    with played(cluster, hosts[0]) as seen:
        said = user.cli("apply", "--yes", "--hosts-only", "--verbose")
    (user.folder / "apply.log").write_text(said.err + said.out)
    told = dict.fromkeys(_boot_and_cordon(event.object) for event in seen)
    (user.folder / "node.log").write_text("".join(f"boot {boot} cordoned {cordoned}\n" for boot, cordoned in told))
    return said, user, seen, before


def test_both_are_in_another_boot(run: Run, hosts: tuple[NspawnHost, ...]) -> None:
    """One by root's SSH, the other through sudo; what asked for the reboot is gone with the old one."""
    said, _, _, before = run
    assert said.code == 0, said.text
    assert REASON in said.out
    for host, boot in zip(hosts, before, strict=True):
        assert boot
        assert state.of(host).check_output("cat /proc/sys/kernel/random/boot_id") != boot
        assert not state.of(host).file("/run/reboot-required").exists


def test_the_node_was_cordoned_until_ready_in_its_new_boot(
    run: Run, hosts: tuple[NspawnHost, ...], cluster: Server
) -> None:
    _, _, seen, before = run
    boots, after = [_boot_and_cordon(event.object) for event in seen], boot_of(hosts[0])
    assert (before[0], True) in boots, "cordoned before"
    assert (after, True) in boots, "and until it has reported"
    assert boots.index((after, False)) > boots.index((after, True))
    node = cluster.get(f"/api/v1/nodes/{NODE}")
    assert not node["spec"].get("unschedulable")
    assert CORDONED not in (node["metadata"].get("annotations") or {})


def _boot_and_cordon(node: Object) -> tuple[str, bool]:
    info = node.get("status", {}).get("nodeInfo", {})
    return info.get("bootID", ""), bool(node["spec"].get("unschedulable"))


def test_the_second_run_reboots_nothing(run: Run, hosts: tuple[NspawnHost, ...]) -> None:
    for host in hosts:
        nspawn.await_boot(host)
    boots = [boot_of(host) for host in hosts]
    again = run[1].apply("--hosts-only")
    assert again.code == 0, again.text
    assert again.changes == [[], []]
    assert [boot_of(host) for host in hosts] == boots
