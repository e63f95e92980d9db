"""Fleet files: the simulated machines of a sandbox, how long things take on them, and what goes wrong."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from gpu_provision.model.findings import Finding, InvalidInventory
from gpu_provision.sandbox.gpus import GpuModel, models
from gpu_provision.sandbox.nodes.faults import Fault

KERNELS = {
    "ubuntu20.04": "5.4.0-196-generic",
    "ubuntu22.04": "5.15.0-122-generic",
    "ubuntu24.04": "6.8.0-45-generic",
    "rhel8.10": "4.18.0-553.el8_10.x86_64",
    "rhel9.4": "5.14.0-427.el9.x86_64",
    "rocky9.4": "5.14.0-427.el9.x86_64",
    "debian12": "6.1.0-26-amd64",
}
"""The kernel that a machine runs if the fleet does not say."""

MOST_MACHINES = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long things take on a machine, in seconds; ``speed`` divides them all.

    Attributes:
        speed: 2 makes everything twice as fast.
        image_pull: Pulling an image that the machine does not have yet.
        container_start: Between the image and the running container.
        driver_build: Building and loading the driver.
        toolkit_install: Installing the container toolkit.
        vectoradd: One run of the CUDA sample.
        probe: What one second of a probe's initial delay costs.
        retry: How long a waiter or a retry of the kubelet pauses; stands for the 5 seconds of the real ones.
        back_off: First pause before a crashed container starts again; doubles up to 30 times itself.
        reboot: How long a machine is away while it reboots.
        termination: Longest grace that a container takes to end.
        lease: Between two heartbeats of a node; not divided by ``speed``.
    """

    speed: float = 1.0
    image_pull: float = 0.5
    container_start: float = 0.05
    driver_build: float = 4.0
    toolkit_install: float = 1.0
    vectoradd: float = 0.5
    probe: float = 0.0
    retry: float = 0.5
    back_off: float = 1.0
    reboot: float = 3.0
    termination: float = 0.2
    lease: float = 10.0

    def scaled(self, seconds: float) -> float:
        """Return a duration as this fleet lives it."""
        return seconds / self.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """One simulated machine as the fleet declares it.

    Attributes:
        os: Identifier and version in one word, such as ``ubuntu22.04``.
        runtime: Container runtime as a node reports it, such as ``containerd://1.7.27``.
        gpu: Model of its GPUs; None for a machine without.
        host: What the simulated host has besides: ``driver`` (version of a driver installed on the host),
            ``nouveau``, ``modules``, ``builtin``; read by the simulation of hosts too.
    """

    name: str
    os: str = "ubuntu22.04"
    kernel: str = ""
    architecture: str = "amd64"
    runtime: str = "containerd://1.7.27"
    kubelet: str = "v1.34.1"
    cpus: int = 16
    memory: str = "64Gi"
    pods: int = 110
    gpu: GpuModel | None = None
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    roles: tuple[str, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)

    @property
    def os_id(self) -> str:
        """The identifier without the version: ``ubuntu``."""
        return self.os.rstrip("0123456789.")

    @property
    def os_version(self) -> str:
        """The version alone: ``22.04``."""
        return self.os[len(self.os_id) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The machines of one sandbox.

    Attributes:
        name: Name of the sandbox.
        source: The file it came from; empty for a fleet made in memory.
        events: Whether nodes record every event or only the ones about problems.
    """

    name: str
    machines: tuple[MachineSpec, ...]
    timings: Timings = field(default_factory=Timings)
    faults: tuple[Fault, ...] = ()
    events: str = "all"
    source: str = ""


def load_fleet(fleet: str | Path = "default") -> Fleet:
    """Return the fleet of a file, or a built-in one by name; ``nodes-200`` has 200 GPU nodes, for benchmarks.

    Raises InvalidInventory with all its findings.
    """
    numbered = re.fullmatch(r"nodes-(\d{1,4})", str(fleet))
    if numbered:
        return gpu_fleet(int(numbered[1]), name=str(fleet))
    from gpu_provision.sandbox.fleet_file import parse_fleet  # noqa: PLC0415 - it builds the values of this module

    name, source, text = _read(fleet)
    return parse_fleet(text, name=name, source=source)


def gpu_fleet(count: int, *, name: str = "bench", speed: float = 1.0) -> Fleet:
    """Return a fleet of ``count`` nodes with one Tesla T4 each and one control-plane node, for benchmarks."""
    width = max(3, len(str(count)))
    machines = tuple(
        MachineSpec(name=f"gpu-{n:0{width}}", kernel=KERNELS["ubuntu22.04"], gpu=models()["Tesla T4"], gpus=1)
        for n in range(1, count + 1)
    )
    control = MachineSpec(name="control-1", kernel=KERNELS["ubuntu22.04"], roles=("control-plane",))
    return Fleet(name=name, machines=(control, *machines), timings=Timings(speed=speed), events="problems")


def fleet_digest(fleet: Fleet) -> str:
    """Return a digest of what a fleet says, wherever it came from."""
    told = (fleet.name, fleet.machines, fleet.timings, fleet.faults, fleet.events)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def built_in() -> tuple[str, ...]:
    """Return the names of the fleets that come with the sandbox."""
    folder = resources.files(__package__).joinpath("fleets")
    return tuple(sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def _read(fleet: str | Path) -> tuple[str, str, str]:
    if str(fleet) in built_in():
        file = resources.files(__package__).joinpath("fleets", f"{fleet}.yaml")
        return str(fleet), f"{fleet}.yaml", file.read_text(encoding="utf-8")
    path = Path(fleet)
    try:
        return path.stem, str(path), path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = f"give the path of a fleet file, or one of: {', '.join(built_in())}, nodes-<count>"
        what = "the fleet file cannot be read"
        raise InvalidInventory(
            Finding(code="GP701", what=what, where=str(path), evidence=str(error), fix=fix)
        ) from None
