"""What simulated operands write and print, for the sandbox's programs and for the stand-in images of a real node.

Standard library only: stand-in images contain this file alone (tests/real/images).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Object = dict[str, Any]

GPU_RESOURCE = "nvidia.com/gpu"

VECTOR_ADD_LINES = (
    "[Vector addition of 50000 elements]",
    "Copy input data from the host memory to the CUDA device",
    "CUDA kernel launch with 196 blocks of 256 threads",
    "Copy output data from the CUDA device to the host memory",
    "Test PASSED",
    "Done",
)
VECTOR_ADD_FAILED = "Failed to allocate device vector A (error code {})!"
NO_DEVICE = "no CUDA-capable device is detected"

CUDA_BY_BRANCH = (
    (595, "13.2"),
    (590, "13.1"),
    (580, "13.0"),
    (575, "12.9"),
    (570, "12.8"),
    (565, "12.7"),
    (560, "12.6"),
    (555, "12.5"),
    (550, "12.4"),
    (545, "12.3"),
    (535, "12.2"),
    (530, "12.1"),
    (525, "12.0"),
    (520, "11.8"),
    (515, "11.7"),
    (510, "11.6"),
    (470, "11.4"),
    (450, "11.0"),
)
"""First driver branch of each CUDA version: NVIDIA's CUDA compatibility table; 590 and above as nvidia-smi prints."""


def branch(driver: str) -> int:
    """Return a driver version's first number: 580 for ``580.95.05``."""
    first = driver.split(".", maxsplit=1)[0].split("-", maxsplit=1)[0]
    return int(first) if first.isdigit() else 0


def cuda_version(driver: str) -> str:
    """Return the newest CUDA version that a driver supports."""
    return next((cuda for oldest, cuda in CUDA_BY_BRANCH if branch(driver) >= oldest), "10.2")


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model that a simulated machine can have.

    Attributes:
        name: As nvidia-smi prints it; ``aliases`` are short names for fleet files.
        device: PCI device id, four hexadecimal digits.
        pci_class: ``0302`` for a 3D controller, ``0300`` for one with a display.
        memory: MiB, as nvidia-smi counts them.
        compute: CUDA compute capability, such as ``7.5``.
        family: As GPU Feature Discovery labels it, such as ``turing``.
        oldest_driver: First driver branch that supports the model.
        open_modules_only: Whether the proprietary kernel modules refuse it (Blackwell and later).
    """

    name: str
    aliases: tuple[str, ...]
    device: str
    pci_class: str
    memory: int
    compute: str
    family: str
    oldest_driver: int
    open_modules_only: bool = False


# Sources: the PCI id database, NVIDIA's CUDA GPU list and driver release notes, GPU Feature Discovery's label rules.
GPU_MODELS = (
    GpuModel("Tesla V100-SXM2-16GB", (), "1db1", "0302", 16384, "7.0", "volta", 384),
    GpuModel("Tesla T4", ("T4",), "1eb8", "0302", 15360, "7.5", "turing", 410),
    GpuModel("NVIDIA A10", ("A10",), "2236", "0302", 23028, "8.6", "ampere", 460),
    GpuModel("NVIDIA A30", ("A30",), "20b7", "0302", 24576, "8.0", "ampere", 460),
    GpuModel("NVIDIA A40", ("A40",), "2235", "0302", 46068, "8.6", "ampere", 455),
    GpuModel("NVIDIA RTX A6000", ("RTX A6000",), "2230", "0300", 49140, "8.6", "ampere", 455),
    GpuModel("NVIDIA A100-SXM4-40GB", ("A100-SXM4-40GB",), "20b0", "0302", 40960, "8.0", "ampere", 450),
    GpuModel("NVIDIA A100-SXM4-80GB", ("A100-SXM4-80GB", "A100"), "20b2", "0302", 81920, "8.0", "ampere", 450),
    GpuModel("NVIDIA A100 80GB PCIe", ("A100 80GB PCIe",), "20b5", "0302", 81920, "8.0", "ampere", 470),
    GpuModel("NVIDIA L4", ("L4",), "27b8", "0302", 23034, "8.9", "ada-lovelace", 525),
    GpuModel("NVIDIA L40S", ("L40S",), "26b9", "0302", 46068, "8.9", "ada-lovelace", 535),
    GpuModel("NVIDIA H100 80GB HBM3", ("H100", "H100 80GB HBM3"), "2330", "0302", 81559, "9.0", "hopper", 525),
    GpuModel("NVIDIA H100 PCIe", ("H100 PCIe",), "2331", "0302", 81559, "9.0", "hopper", 520),
    GpuModel("NVIDIA H200", ("H200",), "2335", "0302", 143771, "9.0", "hopper", 550),
    GpuModel("NVIDIA GH200 480GB", ("GH200",), "2342", "0302", 97871, "9.0", "hopper", 535, open_modules_only=True),
    GpuModel("NVIDIA GB200", ("GB200",), "2941", "0302", 189471, "10.0", "blackwell", 570, open_modules_only=True),
    GpuModel("NVIDIA B200", ("B200",), "2901", "0302", 183359, "10.0", "blackwell", 570, open_modules_only=True),
)


# GPU Feature Discovery

_MIG_MODELS = ("A30", "A100", "H100", "H200", "B200")


class Mig(NamedTuple):
    """The MIG devices of each GPU of a machine: all of one profile, such as ``1g.10gb``."""

    profile: str
    devices: int

    @classmethod
    def parse(cls, text: str) -> Mig | None:
        """Return ``7x1g.10gb`` in its two parts; None for an empty text."""
        devices, _, profile = text.partition("x")
        return cls(profile, int(devices)) if profile else None


def gpu_labels(  # noqa: PLR0913  what it knows of a machine
    gpu: GpuModel, count: int, driver: str, *, strategy: str, copies: int = 1, sharing: str = "none"
) -> dict[str, str]:
    """Return what GPU Feature Discovery says about ``count`` GPUs of one model, without the timestamp."""
    cuda, mig = cuda_version(driver), any(name in gpu.name for name in _MIG_MODELS)
    versions = (
        ("cuda.driver", driver, ("major", "minor", "rev")),
        ("cuda.driver-version", driver, ("major", "minor", "revision")),
        ("cuda.runtime", cuda, ("major", "minor")),
        ("cuda.runtime-version", cuda, ("major", "minor")),
        ("gpu.compute", gpu.compute, ("major", "minor")),
    )
    labels = {
        f"{name}.{key}": number
        for name, version, keys in versions
        for key, number in zip(keys, (*version.split("."), "", ""), strict=False)
    }
    labels |= {
        "cuda.driver-version.full": driver,
        "cuda.runtime-version.full": cuda,
        "gpu.count": str(count),
        "gpu.family": gpu.family,
        "gpu.machine": "Simulated-Machine",
        "gpu.memory": str(gpu.memory),
        "gpu.mode": "compute" if gpu.pci_class == "0302" else "graphics",
        "gpu.product": gpu.name.replace(" ", "-") + ("-SHARED" if copies > 1 else ""),
        "gpu.replicas": str(copies),
        "gpu.sharing-strategy": sharing,
        "mig.capable": str(mig).lower(),
        "mps.capable": str(sharing == "mps").lower(),
        **({"mig.strategy": strategy} if mig else {}),
    }
    return {f"nvidia.com/{key}": value for key, value in labels.items()}


def mig_labels(gpu: GpuModel, count: int, mig: Mig, *, strategy: str, copies: int = 1) -> dict[str, str]:
    """Return the labels of MIG devices, which replace those of ``count`` GPUs; strategy ``single`` calls them GPUs."""
    name, slices = "gpu" if strategy == "single" else f"mig-{mig.profile}", mig.profile.partition("g")[0]
    labels = {
        "gpu.replicas": "0",  # MIG devices are shared, not their GPU
        "gpu.sharing-strategy": "none",
        f"{name}.count": str(count * mig.devices),
        f"{name}.product": f"{gpu.name.replace(' ', '-')}-MIG-{mig.profile}",
        f"{name}.replicas": str(copies),
        f"{name}.slices.ci": slices,
        f"{name}.slices.gi": slices,
    }
    return {f"nvidia.com/{key}": value for key, value in labels.items()}


class Offer(NamedTuple):
    """What a device plugin offers: the resource, the devices of each GPU, how often each is offered, and by what."""

    resource: str
    devices: int
    replicas: int
    sharing: str


def find_offer(configuration: Any, mig: Mig | None, *, strategy: str) -> Offer:
    """Return what a device plugin offers by MIG, and by time slicing or MPS in its configuration."""
    resource = f"nvidia.com/mig-{mig.profile}" if mig and strategy == "mixed" else GPU_RESOURCE
    sharing = (configuration.get("sharing") if isinstance(configuration, dict) else None) or {}
    kind = sharing.get("mps") or sharing.get("timeSlicing") or {}
    found: dict[str, Any] = next((each for each in kind.get("resources") or () if each.get("name") == resource), {})
    is_renamed = bool(found) and kind.get("renameByDefault")
    devices = mig.devices if mig and strategy != "none" else 1
    by = ("mps" if sharing.get("mps") else "time-slicing") if found else "none"
    return Offer(f"{resource}.shared" if is_renamed else resource, devices, int(found.get("replicas", 1)), by)


# MIG manager

MIG_CONFIG, MIG_STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
MIG_CLIENTS = ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm")
PAUSED_FOR_MIG = "paused-for-mig-change"


def find_mig_devices(configurations: Mapping[str, Any], wanted: str, device: str) -> list[str] | None:
    """Return what a configuration makes of each GPU with this PCI device id, such as ``7x1g.10gb``.

    None if it does not exist.
    """
    entries: list[Mapping[str, Any]] = (configurations.get("mig-configs") or {}).get(wanted) or []
    for entry in entries:
        filtered = entry.get("device-filter")
        if not filtered or f"0x{device}10DE".upper() in map(str.upper, filtered):
            return [f"{count}x{profile}" for profile, count in entry.get("mig-devices", {}).items()]
    return None


# Driver manager

DEPLOY = "nvidia.com/gpu.deploy."
_PAUSED = "paused-for-driver-upgrade"
OPERANDS = {
    "operator-validator": "nvidia-operator-validator",
    "container-toolkit": "nvidia-container-toolkit-daemonset",
    "device-plugin": "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery": "gpu-feature-discovery",
    "dcgm-exporter": "nvidia-dcgm-exporter",
    "dcgm": "nvidia-dcgm",
}
"""Deploy label -> label ``app`` of the pods to wait for, in the order in which the driver manager waits."""


def paused_labels(
    labels: Mapping[str, str], operands: Iterable[str] = tuple(OPERANDS), why: str = _PAUSED
) -> dict[str, str]:
    """Return the node labels that pause the operands of a node, by the present ones."""
    paused = {}
    for operand in operands:
        value = labels.get(f"{DEPLOY}{operand}")
        if value and value != "false" and why not in value:
            value = why if value == "true" else f"{value}_{why}"
        if value:
            paused[f"{DEPLOY}{operand}"] = value
    return paused


def resumed_labels(labels: Mapping[str, str], why: str = _PAUSED) -> dict[str, str]:
    """Return the node labels that let paused operands go on."""
    paused = {key: value for key, value in labels.items() if key.startswith(DEPLOY) and value.endswith(why)}
    return {key: value.removesuffix(why).removesuffix("_") or "true" for key, value in paused.items()}


# Validator

OWNING_KINDS = {"ClusterPolicy", "NVIDIADriver"}
"""Only if one of these owns the driver's DaemonSet, the validator waits for ``.driver-ctr-ready``."""


def driver_ready(*, host: bool, root: str = "/run/nvidia/driver") -> str:
    """Return the text of ``driver-ready``, which entrypoints of other components read as shell assignments."""
    root, inside = ("/", "/host") if host else (root, "/driver-root")
    return (
        f"IS_HOST_DRIVER={str(host).lower()}\nNVIDIA_DRIVER_ROOT={root}\nDRIVER_ROOT_CTR_PATH={inside}\n"
        f"NVIDIA_DEV_ROOT={root}\nDEV_ROOT_CTR_PATH={inside}\n"
    )


# Node Feature Discovery

NODE_NAME_LABEL = "nfd.node.kubernetes.io/node-name"
_PREFIX = "feature.node.kubernetes.io/"
_OWNED = "nfd.node.kubernetes.io/feature-labels"
_CLASSES, _FIELDS = ("03", "0b40", "12"), ("class", "vendor")
_DENIED = ("kubernetes.io", "*.kubernetes.io")
_ALLOWED = tuple(f"{star}{kind}.node.kubernetes.io" for kind in ("feature", "profile") for star in ("", "*."))
_VALUE = re.compile(r"|[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def kernel_labels(kernel: str) -> dict[str, str]:
    """Return what the worker says about a kernel, as ``uname -r`` prints it."""
    numbers = [*kernel.partition("-")[0].split("."), "0", "0"]
    parts = zip(("full", "major", "minor", "revision"), (kernel, *numbers), strict=False)
    return {f"kernel-version.{key}": value for key, value in parts}


def os_labels(os_id: str, version: str) -> dict[str, str]:
    """Return what the worker says about an operating system."""
    major, _, minor = version.partition(".")
    system = {"ID": os_id, "VERSION_ID": version, "VERSION_ID.major": major, "VERSION_ID.minor": minor}
    return {f"system-os_release.{key}": value for key, value in system.items() if value}


def pci_labels(devices: Iterable[Mapping[str, str]], config: Mapping[str, Any]) -> dict[str, str]:
    """Return what the worker says about PCI devices: their class, vendor and device, by the worker's configuration."""
    pci = (config.get("sources") or {}).get("pci") or {}
    classes = tuple(str(each).lower() for each in pci.get("deviceClassWhitelist") or _CLASSES)
    fields = pci.get("deviceLabelFields") or _FIELDS
    shown = (device for device in devices if device["class"].startswith(classes))
    return {f"pci-{'_'.join(device[field] for field in fields if field in device)}.present": "true" for device in shown}


def node_feature(name: str, pod: Mapping[str, Any], node: str, labels: Mapping[str, str]) -> Object:
    """Return the NodeFeature that a pod publishes; it goes when the pod and its controller are gone.

    Raw features are for NodeFeatureRules, which no simulated master knows.
    """
    metadata = pod["metadata"]
    keys = ("apiVersion", "kind", "name", "uid")
    controllers = [{key: owner[key] for key in keys} for owner in metadata.get("ownerReferences") or ()]
    itself = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {NODE_NAME_LABEL: node},
            "ownerReferences": [*controllers, itself],
        },
        "spec": {
            "features": {"attributes": {}, "flags": {}, "instances": {}},
            "labels": {key if "/" in key else f"{_PREFIX}{key}": value for key, value in sorted(labels.items())},
        },
    }


def node_names(feature: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the node that a NodeFeature is about, as an index wants it."""
    name = (feature["metadata"].get("labels") or {}).get(NODE_NAME_LABEL)
    return (name,) if name else ()


def node_labels(features: Iterable[Mapping[str, Any]], extra_namespaces: Sequence[str]) -> dict[str, str]:
    """Return the labels of one node from all its NodeFeatures; later names win."""
    labels: dict[str, str] = {}
    for feature in sorted(features, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"])):
        labels |= feature["spec"].get("labels") or {}
    return {
        name: value
        for name, value in labels.items()
        if _is_allowed(name.partition("/")[0], extra_namespaces) and _VALUE.fullmatch(value)
    }


def _is_allowed(namespace: str, extra: Sequence[str]) -> bool:
    if any(fnmatch.fnmatchcase(namespace, pattern) for pattern in (*_ALLOWED, *extra)):
        return True
    return not any(fnmatch.fnmatchcase(namespace, pattern) for pattern in _DENIED)


def label_patch(node: Mapping[str, Any], wanted: Mapping[str, str]) -> Object | None:
    """Return the patch that gives a node the wanted labels and removes those the master gave it before."""
    labels = node["metadata"].get("labels") or {}
    owned_text = (node["metadata"].get("annotations") or {}).get(_OWNED, "")
    owned = {name if "/" in name else _PREFIX + name for name in owned_text.split(",") if name}
    change: dict[str, str | None] = {name: value for name, value in wanted.items() if labels.get(name) != value}
    change |= {name: None for name in owned - set(wanted) if name in labels}
    listed = ",".join(sorted(name.removeprefix(_PREFIX) for name in wanted))
    if not change and listed == owned_text:
        return None
    return {"metadata": {"labels": change, "annotations": {_OWNED: listed or None}}}
