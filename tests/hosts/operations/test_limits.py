"""Limits of containers: decided from the record, done on simulated hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision.hosts.facts.host import command, parse
from gpu_provision.hosts.facts.runtime import ProcessLimits, RuntimeLimits
from gpu_provision.hosts.operations.settings import limit_changes, value_of
from gpu_provision.hosts.runner import teardown
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.host_root import HostSpec
from tests.hosts.operations.test_settings import fresh, only, with_settings
from tests.hosts.operations.test_teardown import files
from tests.hosts.test_runner import FIRST

__all__ = ["fresh"]

DROP_IN = "etc/systemd/system/containerd.service.d/90-gpu-provision-limits.conf"
WANTED = {"memlock": "unlimited", "stack": "64Mi"}


def containerd(unit: str = "containerd.service", **limits: str) -> ProcessLimits:
    """Return a containerd with these limits, soft and hard."""
    return ProcessLimits(812, "containerd", unit, {name: (value, value) for name, value in limits.items()})


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


def test_unit_is_the_one_that_the_runtime_runs_in() -> None:
    """Distributions have containerd in a unit of their own."""
    known = RuntimeLimits(runtimes=(containerd("k3s-agent.service"), containerd("docker.service")))
    assert [path.split("/")[4] for path in limit_changes(known, WANTED).files] == [
        "docker.service.d",
        "k3s-agent.service.d",
    ]


def test_drop_in_of_a_unit_that_runs_no_runtime_any_more_goes() -> None:
    """Its successor gets one."""
    old = "/etc/systemd/system/docker.service.d/90-gpu-provision-limits.conf"
    known = RuntimeLimits(runtimes=(containerd(memlock="unlimited"),), files={old: ("x",)})
    changes = limit_changes(known, {"memlock": "unlimited"})
    assert changes.files[old] is None
    assert changes.running == ()
    assert changes.words == (
        "limits kept for the boot: containerd.service",
        "limits no longer kept for the boot: docker.service",
    )


def test_soft_limit_alone_is_not_enough() -> None:
    """Both count."""
    half = ProcessLimits(812, "containerd", "containerd.service", {"memlock": ("65536", "unlimited")})
    assert limit_changes(RuntimeLimits(runtimes=(half,)), {"memlock": "unlimited"}).running


@pytest.mark.parametrize(
    ("text", "value"), [("unlimited", "unlimited"), ("64Mi", "67108864"), ("2Gi", "2147483648"), ("0", "0")]
)
def test_values_are_as_the_kernel_prints_them(text: str, value: str) -> None:
    """Bytes, or a number."""
    assert value_of(text) == value


def test_limits_of_a_new_runtime_are_those_of_its_unit_on_every_distribution(sandbox: Path) -> None:
    """The fact finds the unit by the process."""
    units = {}
    for kubelet, runtime in (("v1.31.4+k3s1", "containerd://2.0"), ("v1.31.4", "cri-o://1.31.0")):
        host = hosts.ensure(HostSpec(name=runtime.partition(":")[0], kubelet=kubelet, runtime=runtime), sandbox)
        record = parse(hosts.run(host, command((), ("kernel", "limits"))).stdout.decode().splitlines())
        assert record
        units |= {each.name: (each.unit, each.limits["memlock"]) for each in record.limits.runtimes}
    limit = ("8388608", "8388608")
    assert units == {"containerd": ("k3s-agent.service", limit), "crio": ("crio.service", limit)}
