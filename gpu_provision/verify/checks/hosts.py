"""What the hosts have to be before any container runs."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.verify import hosts
from gpu_provision.verify.cluster import DeclaredNode


def test_the_pci_bus_has_the_declared_gpus(inventory_node: DeclaredNode, inventory_host: Any) -> None:
    """A GPU that fell off the bus is no driver's fault."""
    found = hosts.gpus(inventory_host)
    assert found == inventory_node.gpus, f"the PCI bus has {found} GPUs of NVIDIA's, declared are {inventory_node.gpus}"


def test_kernel_modules_are_loaded(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """Those that the inventory declares; what is built into the kernel counts."""
    absent = _declared(gpu_node) - hosts.loaded(gpu_host) - hosts.built_in(gpu_host)
    assert not absent, f"not loaded: {', '.join(sorted(absent))}"


def test_kernel_modules_are_listed_for_the_boot(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """So that they are there after the next one."""
    absent = _declared(gpu_node) - hosts.listed_for_boot(gpu_host) - hosts.built_in(gpu_host)
    assert not absent, f"in no file of modules-load.d: {', '.join(sorted(absent))}"


def test_nouveau_is_not_loaded(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """It would hold the GPUs."""
    _require_no_nouveau(gpu_node)
    assert "nouveau" not in hosts.loaded(gpu_host), "/proc/modules has nouveau"


def test_nouveau_is_blacklisted(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """It would come back with the next boot."""
    _require_no_nouveau(gpu_node)
    assert hosts.is_blacklisted(gpu_host, "nouveau"), "no file of modprobe.d and no kernel parameter blacklists it"


def test_kernel_parameters_have_their_declared_values(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """Those of ``host_prerequisites.sysctls``, as the running kernel has them."""
    wanted = {key: " ".join(value.split()) for key, value in gpu_node.prerequisites.sysctls.items()}
    found = {key: hosts.parameter(gpu_host, key) for key in wanted}
    differing = [
        f"{key} is {found[key] or 'missing'}, not {wanted[key]}" for key in wanted if found[key] != wanted[key]
    ]
    assert not differing, "; ".join(differing)


def test_huge_pages_are_reserved(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """Those of ``host_prerequisites.hugepages``."""
    wanted = gpu_node.prerequisites.hugepages
    found = {size: hosts.huge_pages(gpu_host, size) for size in wanted}
    differing = [f"{max(found[size], 0)} of {wanted[size]} of {size}" for size in wanted if found[size] != wanted[size]]
    assert not differing, f"huge pages: {'; '.join(differing)}"


def test_containers_begin_with_the_declared_limits(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """Those of ``host_prerequisites.limits``, as the processes of container runtimes have them."""
    differing = []
    for name, text in gpu_node.prerequisites.limits.items():
        wanted, found = _bytes(text), hosts.limits_of_runtimes(gpu_host, _TITLES[name])
        if found != {wanted}:
            differing.append(f"{name} is {' or '.join(sorted(found)) or 'unknown'}, not {wanted}")
    assert not differing, "; ".join(differing)


def test_no_reboot_is_pending(inventory_node: DeclaredNode, inventory_host: Any) -> None:  # noqa: ARG001 - the node names the test
    """What was tested would not be what runs next."""
    reasons = hosts.reboot_reasons(inventory_host)
    assert not reasons, f"a reboot is pending: {'; '.join(reasons)}"


_TITLES = {
    "memlock": "Max locked memory",
    "stack": "Max stack size",
    "core": "Max core file size",
    "nproc": "Max processes",
    "rtprio": "Max realtime priority",
}


def _bytes(text: str) -> str:
    """Write a limit as the kernel prints it."""
    for unit, power in (("Ki", 10), ("Mi", 20), ("Gi", 30)):
        if text.endswith(unit):
            return str(int(text.removesuffix(unit)) << power)
    return text


def _declared(node: DeclaredNode) -> frozenset[str]:
    return frozenset(map(hosts.canonical, node.prerequisites.kernel_modules))


def _require_no_nouveau(node: DeclaredNode) -> None:
    if not node.prerequisites.blacklist_nouveau:
        pytest.skip("host_prerequisites.blacklist_nouveau is false")
