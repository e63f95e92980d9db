"""The GPUs as a process sees them: the driver's library says which there are, device nodes let one use them.

The driver's stand-in for ``libnvidia-ml.so.1`` is a text: ``driver VERSION``, then ``gpu INDEX UUID PCI-ADDRESS
PCI-DEVICE-ID NAME`` for each GPU, then ``mig 4x1g.6gb`` if each of them is divided into four MIG devices. Where the
driver is a real one, its library is asked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_provision.sandbox.operand_rules import GPU_MODELS, GpuModel, Mig

from . import nvml

LIBRARIES = "usr/lib/x86_64-linux-gnu"
NVML, CUDA = f"{LIBRARIES}/libnvidia-ml.so.1", f"{LIBRARIES}/libcuda.so.1"
SMI = "usr/bin/nvidia-smi"
MPS_CONTROL, MPS_SERVER = "usr/bin/nvidia-cuda-mps-control", "usr/bin/nvidia-cuda-mps-server"
FILES = (SMI, NVML, CUDA, MPS_CONTROL, MPS_SERVER)
"""What containers get of a driver, as far as it has it."""
CONTROL_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


class NoDriver(Exception):
    """What NVML says if it cannot start."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its index is part of its device node's name."""

    index: int
    uuid: str
    address: str
    device: str
    name: str
    memory: int = 0  # MiB; as its model has, unless a real driver said it
    compute: str = ""

    @property
    def node(self) -> str:
        """The device node's name below ``/dev``."""
        return f"nvidia{self.index}"


def model(device: str) -> GpuModel:
    return next(model for model in GPU_MODELS if model.device == device)


def measured(gpu: Gpu) -> GpuModel:
    """Return a GPU's model, with what a real driver said of this GPU in place of what the table says."""
    known = model(gpu.device)
    return replace(known, name=gpu.name, memory=gpu.memory or known.memory, compute=gpu.compute or known.compute)


def describe(version: str, gpus: list[Gpu]) -> str:
    lines = [f"gpu {gpu.index} {gpu.uuid} {gpu.address} {gpu.device} {gpu.name}\n" for gpu in gpus]
    return "".join([f"driver {version}\n", *lines])


def driver(root: str = "/") -> tuple[str, list[Gpu]]:
    """Return the driver's version and its GPUs, as the library below ``root`` says. Raises NoDriver."""
    library = Path(root, NVML)
    try:
        if nvml.is_real(library):
            version, devices = nvml.read(library)
            return version, [Gpu(*device) for device in devices]
        first, *others = library.read_text().splitlines()
        return first.split()[1], [_gpu(line.split(maxsplit=5)[1:]) for line in others if line.startswith("gpu ")]
    except (OSError, ValueError, IndexError) as error:
        message = f"could not load NVML library: {error}"
        raise NoDriver(message) from error
    except nvml.Refused as error:
        message = f"Failed to initialize NVML: {error}"
        raise NoDriver(message) from error


def mig(root: str = "/") -> Mig | None:
    """Return the MIG devices of each GPU; None without any, and of a real driver's GPUs. Raises OSError."""
    library = Path(root, NVML)
    lines = [] if nvml.is_real(library) else library.read_text().splitlines()
    return Mig.parse(next((line.removeprefix("mig ") for line in lines if line.startswith("mig ")), ""))


def divide(root: str, made: str) -> None:
    """Divide each GPU into MIG devices such as ``4x1g.6gb``, or into none, for every container that has the library."""
    library = Path(root, NVML)
    kept = [line for line in library.read_text().splitlines() if not line.startswith("mig ")]
    text = "".join(f"{line}\n" for line in [*kept, *([f"mig {made}"] if made else [])])
    with library.open("r+") as file:  # containers have mounted this file, so it is not replaced
        file.write(text)
        file.truncate()


def _gpu(words: list[str]) -> Gpu:
    index, uuid, address, device, name = words
    return Gpu(int(index), uuid, address, device, name)


def usable(root: str = "/") -> tuple[str, list[Gpu]]:
    """Return the driver's version and the GPUs whose device nodes this process can open. Raises NoDriver."""
    version, gpus = driver(root)
    if not _opens(Path("/dev/nvidiactl")):
        message = "Failed to initialize NVML: Unknown Error: /dev/nvidiactl cannot be opened"
        raise NoDriver(message)
    return version, [gpu for gpu in gpus if _opens(Path("/dev", gpu.node))]


def _opens(node: Path) -> bool:
    try:
        if not stat.S_ISCHR(node.stat().st_mode):
            return False
        os.close(os.open(node, os.O_WRONLY))
    except OSError:
        return False
    return True


def control_devices(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the device nodes that every GPU needs; a test leaves some out."""
    names = environment.get("STAND_IN_CONTROL_DEVICES", "")
    return tuple(names.split(",")) if names else CONTROL_DEVICES


def driver_files(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return where this container and where the host has the driver's files, as ``driver-ready`` said."""
    inside = environment.get("DRIVER_ROOT_CTR_PATH", "/driver-root")
    return inside, environment.get("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver")
