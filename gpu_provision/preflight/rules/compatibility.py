"""Whether driver, GPU and CUDA fit together, by the GPU that is really there."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.facts.pci import PciDevice
from gpu_provision.model.findings import Finding
from gpu_provision.preflight import codes
from gpu_provision.preflight.subject import Subject

# CUDA toolkit release notes, "CUDA driver": minor version compatibility begins at these drivers.
CUDA_12 = (525, "525.60.13")

_PROPRIETARY = "proprietary"
_OPEN = "open"


def branch(subject: Subject) -> Iterator[Finding]:
    """Yield GPUs that the driver's branch does not support yet, or no longer."""
    version = _version(subject)
    number = _branch(version)
    for gpu in _kinds(subject) if number else ():
        known = gpu.model
        if known.first_branch and number < known.first_branch:
            reason, right = f"it needs branch {known.first_branch} or newer", f"{known.first_branch} or newer"
        elif known.last_branch and number > known.last_branch:
            reason, right = f"branch {known.last_branch} is the last one for it", f"{known.last_branch} or older"
        else:
            continue
        yield subject.error(
            codes.DRIVER_BRANCH,
            f"the driver {version} does not support {known.name}: {reason}",
            evidence=f"{gpu.address} {gpu.vendor}:{gpu.device} ({known.generation})",
            consequence="the driver loads and finds no device",
            fix=_set_version(subject, right),
        )


def flavor(subject: Subject) -> Iterator[Finding]:
    """Yield GPUs that run with the other kind of kernel modules only."""
    chosen, source = _flavor(subject)
    for gpu in _kinds(subject):
        impossible = {"only": _PROPRIETARY, "never": _OPEN}.get(gpu.model.open_modules)
        if not chosen or chosen != impossible:
            continue
        other = _OPEN if chosen == _PROPRIETARY else _PROPRIETARY
        yield subject.error(
            codes.MODULE_FLAVOR,
            f"{gpu.model.name} runs with the {other} kernel modules only, and these are the {chosen} ones",
            evidence=f"{gpu.address} {gpu.vendor}:{gpu.device} ({gpu.model.generation}); {source}",
            consequence="the modules load and refuse the GPU (dmesg: NVRM: ... open kernel modules)",
            fix=f"{subject.driver_key}.kernel_module_type: auto"
            if subject.expected.driver_container
            else f"install the host's driver with the {other} kernel modules",
        )


def cuda(subject: Subject) -> Iterator[Finding]:
    """Yield a driver that is too old for what today's images are built with."""
    version = _version(subject)
    oldest, name = CUDA_12
    if subject.expected.gpu_count and 0 < _branch(version) < oldest:
        yield subject.warning(
            codes.CUDA_MINIMUM,
            f"the driver {version} is older than {name}, which CUDA 12 needs",
            evidence=f"driver {version}",
            consequence="images built with CUDA 12 or newer need their own compatibility libraries, or fail",
            fix=_set_version(subject, f"{oldest} or newer"),
        )


def _version(subject: Subject) -> str:
    """Return the version of the driver that will run: the declared one, or the host's own."""
    return subject.expected.driver_version if subject.expected.driver_container else subject.host.driver.version


def _branch(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdecimal() else 0


def _kinds(subject: Subject) -> list[PciDevice]:
    """Return one GPU of each kind; none on a machine that gets no driver."""
    gpus = subject.host.pci.gpus if subject.expected.gpu_count else ()
    return list({gpu.device: gpu for gpu in reversed(gpus)}.values())


def _flavor(subject: Subject) -> tuple[str, str]:
    """Return which kind of kernel modules will run, and what says so; empty if nothing does."""
    if subject.expected.driver_container:
        chosen = subject.expected.kernel_module_type
        return (chosen if chosen in {_OPEN, _PROPRIETARY} else "", f"kernel_module_type: {chosen}")
    driver = subject.host.driver
    if driver.loaded_open is not None:
        return (_OPEN if driver.loaded_open else _PROPRIETARY), "/proc/driver/nvidia/version"
    if driver.module_license:
        is_open = "GPL" in driver.module_license
        return (_OPEN if is_open else _PROPRIETARY), f"modinfo nvidia: license {driver.module_license}"
    return "", ""


def _set_version(subject: Subject, right: str) -> str:
    if subject.expected.driver_container:
        return f"set {subject.driver_key}.version to a driver of branch {right}"
    return f"install a driver of branch {right} on the host"
