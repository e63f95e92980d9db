"""Which stand-in plays which image: a table by the last part of an image's name, whatever registry it is from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.real.images.layers import Item

UNPRIVILEGED = "65534:65534"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """What an image has; environment, entrypoint and user are as the real image sets them."""

    programs: Mapping[str, str] = field(default_factory=dict)  # path -> module, and function if that is not ``main``
    shell: bool = True  # images that their makers call distroless have none
    packages: Sequence[str] = ()  # of Python, for its programs
    files: Mapping[str, Item] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    user: str = ""


_NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}
_EVERY_GPU = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
_COUNTERS = Item(
    b"# Field, Prometheus type, help\n"
    b"DCGM_FI_DEV_SM_CLOCK, gauge, SM clock frequency (in MHz).\n"
    b"DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n"
    b"DCGM_FI_DEV_POWER_USAGE, gauge, Power draw (in W).\n"
    b"DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).\n"
    b"DCGM_FI_DEV_FB_FREE, gauge, Framebuffer memory free (in MiB).\n"
    b"DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).\n"
    b"DCGM_FI_DEV_XID_ERRORS, gauge, Value of the last XID error encountered.\n"
)

STAND_INS: Mapping[str, StandIn] = {
    # As the real one it ends at a signal: otherwise systemd waits 90 s for it before a reboot.
    "pause": StandIn(entrypoint=("/bin/sh", "-c", "trap 'exit 0' TERM INT; sleep 2147483647 & wait")),
    "node-feature-discovery": StandIn(
        programs={
            "/usr/bin/nfd-worker": "nfd_worker",
            "/usr/bin/nfd-master": "nfd_master",
            "/usr/bin/nfd-gc": "nfd_master:collect",
        },
        shell=False,
        packages=("yaml",),
        user=UNPRIVILEGED,
    ),
    "k8s-driver-manager": StandIn(
        programs={"/usr/bin/driver-manager": "driver_manager"}, environment=_NO_GPU, entrypoint=("driver-manager",)
    ),
    "driver": StandIn(
        programs={"/usr/local/bin/nvidia-driver": "driver"}, environment=_NO_GPU, entrypoint=("nvidia-driver", "init")
    ),
    "nvidia-fs": StandIn(programs={"/usr/bin/nvidia-gds-driver": "modules:gds"}, environment=_NO_GPU),
    "gdrdrv": StandIn(programs={"/usr/bin/nvidia-gdrcopy-driver": "modules:gdrcopy"}, environment=_NO_GPU),
    "k8s-mig-manager": StandIn(
        programs={"/usr/bin/nvidia-mig-manager": "mig_manager"},
        packages=("yaml",),
        environment=_EVERY_GPU,
        entrypoint=("nvidia-mig-manager",),
    ),
    "container-toolkit": StandIn(
        programs={"/usr/bin/nvidia-toolkit": "toolkit", "/usr/bin/nvidia-ctk-installer": "toolkit"},
        environment=_NO_GPU | {"NVIDIA_DRIVER_CAPABILITIES": "utility"},
        entrypoint=("nvidia-ctk-installer",),
    ),
    "gpu-operator": StandIn(
        programs={"/usr/bin/nvidia-validator": "validator", "/usr/bin/vectorAdd": "cuda"}, environment=_NO_GPU
    ),
    "k8s-device-plugin": StandIn(
        programs={
            "/usr/bin/nvidia-device-plugin": "device_plugin",
            "/usr/bin/gpu-feature-discovery": "gfd",
            "/usr/bin/config-manager": "config_manager",
            "/usr/bin/mps-control-daemon": "mps",
        },
        packages=("grpc", "google.protobuf", "google._upb", "typing_extensions", "yaml"),
        environment=_EVERY_GPU,
        entrypoint=("nvidia-device-plugin",),
    ),
    "dcgm-exporter": StandIn(
        programs={"/usr/bin/dcgm-exporter": "dcgm"},
        shell=False,
        files={
            "/etc/dcgm-exporter/default-counters.csv": _COUNTERS,
            "/etc/dcgm-exporter/dcp-metrics-included.csv": _COUNTERS,
        },
        environment=_EVERY_GPU,
        entrypoint=("/usr/bin/dcgm-exporter",),
    ),
}


def of(image: str) -> StandIn:
    """Return the stand-in for an image. Raises LookupError if there is none."""
    name = kind(image)
    if name not in STAND_INS:
        message = f"no stand-in for the image {image}: add one to {__name__}.STAND_INS"
        raise LookupError(message)
    return STAND_INS[name]


def kind(image: str) -> str:
    """Return the last part of an image's name."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def environment(image: str) -> dict[str, str]:
    """Return an image's environment; a driver's version and operating system stand in its tag."""
    found = dict(of(image).environment)
    name, _, tag = image.rpartition("/")[2].partition(":")
    if name == "driver":
        version, _, system = tag.partition("-")
        found |= {"DRIVER_VERSION": version, "STAND_IN_OS": system.rpartition("-")[2]}
    return found
