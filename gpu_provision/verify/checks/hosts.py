"""What the hosts have to be before any container runs, and how that is read: by shell commands of testinfra's hosts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_provision.verify.cluster import DeclaredNode

_ETC = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
_GPU = re.compile(r"0x10de 0x030[02]\S*")  # NVIDIA's VGA and 3D controllers, not their sound or USB functions
_DEVICES = "for device in /sys/bus/pci/devices/*; do echo $(cat $device/vendor) $(cat $device/class); done"
_RUNTIMES = (
    "for name in /proc/[0-9]*/comm; do grep -qxE 'containerd|crio|dockerd' $name && cat ${name%comm}limits; done"
)
_REBOOT = (
    ("/run/reboot-required exists", "test -e /run/reboot-required", 0),
    ("needs-restarting -r says so", "if command -v needs-restarting >/dev/null; then needs-restarting -r; fi", 1),
    ("zypper needs-rebooting says so", "if command -v zypper >/dev/null; then zypper needs-rebooting; fi", 102),
)
_UNITS = {"Ki": 10, "Mi": 20, "Gi": 30}  # powers of two
_TITLES = {
    "memlock": "Max locked memory",
    "stack": "Max stack size",
    "core": "Max core file size",
    "nproc": "Max processes",
    "rtprio": "Max realtime priority",
}


def test_the_pci_bus_has_the_declared_gpus(inventory_node: DeclaredNode, inventory_host: Any) -> None:
    """A GPU that fell off the bus is no driver's fault."""
    found = sum(bool(_GPU.fullmatch(line)) for line in _lines(inventory_host, _DEVICES))
    wanted = inventory_node.gpus or ("any" if inventory_node.pool.gpu else 0)
    assert inventory_node.has_as_declared(found), f"the PCI bus has {found} GPUs of NVIDIA's, declared are {wanted}"


def test_kernel_modules_are_loaded(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """Those that the inventory declares; what is built into the kernel counts."""
    absent = _declared_modules(gpu_node) - _loaded_modules(gpu_host) - _built_in(gpu_host)
    assert not absent, f"not loaded: {', '.join(sorted(absent))}"


def test_kernel_modules_are_listed_for_the_boot(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """So that they are there after the next one."""
    folders = " ".join(f"{folder}/modules-load.d/*.conf" for folder in _ETC)
    lines = _lines(gpu_host, f"cat /etc/modules {folders}")
    listed = {_canonical(line) for line in lines if not line.startswith(("#", ";"))}
    absent = _declared_modules(gpu_node) - listed - _built_in(gpu_host)
    assert not absent, f"in no file of modules-load.d: {', '.join(sorted(absent))}"


def test_nouveau_is_not_loaded(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """It would hold the GPUs."""
    _require_no_nouveau(gpu_node)
    loaded = {"nouveau", "nova_core"} & _loaded_modules(gpu_host)
    assert not loaded, f"/proc/modules has {', '.join(sorted(loaded))}"


def test_nouveau_is_blacklisted(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """It would come back with the next boot."""
    _require_no_nouveau(gpu_node)
    assert is_blacklisted(gpu_host, "nouveau"), "no file of modprobe.d and no kernel parameter blacklists it"


def test_kernel_parameters_have_their_declared_values(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """Those of ``host_prerequisites.sysctls``, as the running kernel has them."""
    differing = []
    for key, value in gpu_node.prerequisites.sysctls.items():
        words = " ".join(_lines(gpu_host, f"cat /proc/sys/{key.replace('.', '/')}")).split()
        if words != value.split():
            differing.append(f"{key} is {' '.join(words) or 'missing'}, not {' '.join(value.split())}")
    assert not differing, "; ".join(differing)


def test_huge_pages_are_reserved(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """Those of ``host_prerequisites.hugepages``."""
    wanted = gpu_node.prerequisites.hugepages
    differing = []
    for size, number in wanted.items():
        path = f"/sys/kernel/mm/hugepages/hugepages-{(int(size[:-2]) << _UNITS[size[-2:]]) // 1024}kB/nr_hugepages"
        lines = _lines(gpu_host, f"cat {path}")  # none if the kernel has no pages of this size
        if not lines or int(lines[0]) != number:
            differing.append(f"{lines[0] if lines else 0} of {number} of {size}")
    assert not differing, f"huge pages: {'; '.join(differing)}"


def test_containers_begin_with_the_declared_limits(gpu_node: DeclaredNode, gpu_host: Any) -> None:
    """Those of ``host_prerequisites.limits``, as the processes of container runtimes have them."""
    differing = []
    for name, text in gpu_node.prerequisites.limits.items():
        # As the kernel prints a limit, soft and hard, of each process.
        wanted = str(int(text[:-2]) << _UNITS[text[-2:]]) if text[-2:] in _UNITS else text
        printed = (line.partition(_TITLES[name]) for line in _lines(gpu_host, _RUNTIMES))
        found = {value for before, title, rest in printed if title and not before for value in rest.split()[:2]}
        if found != {wanted}:
            differing.append(f"{name} is {' or '.join(sorted(found)) or 'unknown'}, not {wanted}")
    assert not differing, "; ".join(differing)


def test_no_reboot_is_pending(inventory_node: DeclaredNode, inventory_host: Any) -> None:  # noqa: ARG001 - the node names the test
    """What was tested would not be what runs next."""
    reasons = [reason for reason, command, status in _REBOOT if inventory_host.run(command).rc == status]
    assert not reasons, f"a reboot is pending: {'; '.join(reasons)}"


def is_blacklisted(host: Any, module: str) -> bool:
    """Whether modprobe's configuration or the kernel's command line keeps a module from loading by itself."""
    lines = _lines(host, f"cat {' '.join(f'{folder}/modprobe.d/*.conf' for folder in _ETC)}")
    never = rf"(blacklist\s+{module}\b|install\s+{module}\s+\S*/(false|true)\b)"
    command_line = " ".join(_lines(host, "cat /proc/cmdline"))
    named = re.findall(r"(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=(\S*)", command_line)
    return any(re.match(never, line) for line in lines) or any(module in value.split(",") for value in named)


def _loaded_modules(host: Any) -> frozenset[str]:
    return frozenset(_canonical(line.split()[0]) for line in _lines(host, "cat /proc/modules"))


def _built_in(host: Any) -> frozenset[str]:
    lines = _lines(host, "cat /lib/modules/$(uname -r)/modules.builtin")
    return frozenset(_canonical(line.rpartition("/")[2].partition(".ko")[0]) for line in lines)


def _canonical(module: str) -> str:
    """Write a module's name as the kernel does."""
    return module.strip().replace("-", "_")


def _lines(host: Any, command: str) -> list[str]:
    """Return what a command prints, without what it says of files that are not there."""
    return [line.strip() for line in host.run(command).stdout.splitlines() if line.strip()]


def _declared_modules(node: DeclaredNode) -> frozenset[str]:
    return frozenset(map(_canonical, node.prerequisites.kernel_modules))


def _require_no_nouveau(node: DeclaredNode) -> None:
    if not node.prerequisites.blacklist_nouveau:
        pytest.skip("host_prerequisites.blacklist_nouveau is false")
