"""Limits of containers: decided from the record, done on simulated hosts."""

from __future__ import annotations

from pathlib import Path

from gpu_provision.hosts.facts.host import command, parse
from gpu_provision.hosts.runner import teardown
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts.spec import HostSpec
from tests.hosts.operations.test_settings import fresh, only, with_settings
from tests.hosts.operations.test_teardown import files
from tests.hosts.test_runner import FIRST

__all__ = ["fresh"]

DROP_IN = "etc/systemd/system/containerd.service.d/90-gpu-provision-limits.conf"
WANTED = {"memlock": "unlimited", "stack": "64Mi"}


def test_limits_are_set_once_kept_for_the_boot_and_taken_back(fresh: tuple[Inventory, Path]) -> None:
    """First run, second run, other limits behind our back, nothing declared any more, teardown."""
    plain, root = fresh
    before = files(root)
    declared = with_settings(plain, limits=WANTED)
    assert only(declared).changes == (
        *FIRST,
        "limits of containerd set: memlock=unlimited, stack=67108864",
        "limits kept for the boot: containerd.service",
    )
    assert (root / DROP_IN).read_text().splitlines()[1:] == [
        "[Service]",
        "LimitMEMLOCK=infinity",
        "LimitSTACK=67108864",
    ]
    assert "Max locked memory unlimited unlimited" in (root / "proc/812/limits").read_text()
    assert only(declared).changes == ()
    shown = root / "proc/812/limits"
    shown.write_text(shown.read_text().replace("Max locked memory unlimited", "Max locked memory 65536"))
    assert only(declared).changes == ("limits of containerd set: memlock=unlimited",)
    assert only(plain).changes == ("limits no longer kept for the boot: containerd.service",)
    assert only(plain).changes == ()
    teardown(plain)
    limits_of_the_process = "proc/812/limits"
    assert {path: text for path, text in files(root).items() if path != limits_of_the_process} == {
        path: text for path, text in before.items() if path != limits_of_the_process
    }


def test_host_without_a_runtime_fails_and_is_left_alone(fresh: tuple[Inventory, Path]) -> None:
    """There is nothing whose limits could be set."""
    declared, root = fresh
    (root / "proc/812/comm").write_text("gone\n")
    outcome = only(with_settings(declared, limits=WANTED))
    assert [finding.code for finding in outcome.errors] == ["GP667"]
    assert not (root / DROP_IN).exists()


def test_unit_of_a_runtime_is_found_on_every_distribution(sandbox: Path) -> None:
    """The fact finds the unit by the process."""
    units = {}
    for kubelet, runtime in (("v1.31.4+k3s1", "containerd://2.0"), ("v1.31.4", "cri-o://1.31.0")):
        host = hosts.ensure(HostSpec(name=runtime.partition(":")[0], kubelet=kubelet, runtime=runtime), sandbox)
        record = parse(hosts.run(host, command((), ("kernel", "limits"))).stdout.decode().splitlines())
        assert record
        units |= {each.name: (each.unit, each.limits["memlock"]) for each in record.limits.runtimes}
    limit = ("8388608", "8388608")
    assert units == {"containerd": ("k3s-agent.service", limit), "crio": ("crio.service", limit)}
