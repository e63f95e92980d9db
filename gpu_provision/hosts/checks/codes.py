"""Every finding of preflight: codes are stable, so that people can search for them and inventories name them."""

from __future__ import annotations

HOST_DRIVER_REMOVED = "GP411"
HOST_DRIVER_WAITS = "GP412"
GPU_COUNT = "GP609"
GPU_ABSENT = "GP610"
GPU_UNDECLARED = "GP611"
GPU_MODEL = "GP612"
GPU_TAKEN = "GP613"
NOUVEAU_WANTED = "GP614"
SECURE_BOOT = "GP615"
MODULE_UNSIGNED = "GP616"
HOST_DRIVER = "GP620"
NO_HOST_DRIVER = "GP621"
DRIVER_MIXED = "GP622"
DRIVER_NOT_LOADED = "GP623"
DRIVER_BRANCH = "GP624"
MODULE_FLAVOR = "GP625"
CUDA_MINIMUM = "GP626"
DEVICE_HELD = "GP627"
FABRIC_MANAGER = "GP628"
FABRIC_MODULES = "GP629"
KERNEL_PENDING = "GP630"
NO_HEADERS = "GP631"
UNATTENDED = "GP632"
RUNTIME_OLD = "GP640"
RUNTIME_PATHS = "GP641"
RUNTIME_SCHEMA = "GP642"
RUNTIME_NO_CRI = "GP643"
CGROUP_DRIVERS = "GP644"
NODE_NAME = "GP650"
OTHER_SYSTEM = "GP651"
DISK_SMALL = "GP652"
CLOCK_SKEW = "GP653"
PROXY_UNKNOWN = "GP654"
HOST_UNREAD = "GP655"
IMAGE_ABSENT = "GP660"
IMAGE_ARCHITECTURE = "GP661"
IMAGE_UNKNOWN = "GP662"
SWAP_ON = "GP663"
LARGE_PAGES = "GP664"

CODES: dict[str, str] = {
    HOST_DRIVER_REMOVED: "The host's driver was removed and is still loaded",
    HOST_DRIVER_WAITS: "The host has got a driver of its own while a container's is loaded",
    GPU_COUNT: "A host has another number of GPUs than the inventory declares",
    GPU_ABSENT: "The inventory declares a GPU, and the PCI bus has none",
    GPU_UNDECLARED: "A host has a GPU, and its pool declares none",
    GPU_MODEL: "A host has another model of GPU than the inventory declares",
    GPU_TAKEN: "A GPU is bound to a driver for virtual machines",
    NOUVEAU_WANTED: "nouveau has the GPU, and the inventory leaves it there",
    SECURE_BOOT: "The kernel refuses modules that a driver container builds: they are not signed",
    MODULE_UNSIGNED: "The host's driver is not signed, and the kernel refuses unsigned modules",
    HOST_DRIVER: "The driver comes as a container, and the host has one of its own",
    NO_HOST_DRIVER: "The driver belongs to the host, and there is none",
    DRIVER_MIXED: "The loaded driver and its libraries are of different versions",
    DRIVER_NOT_LOADED: "The host's driver is not loaded",
    DRIVER_BRANCH: "The driver does not support this GPU: too old, or too new",
    MODULE_FLAVOR: "The GPU runs with the other kind of kernel modules only: open or proprietary",
    CUDA_MINIMUM: "The driver is older than what CUDA 12 needs",
    DEVICE_HELD: "A service of the host holds the GPU that a driver container wants",
    FABRIC_MANAGER: "There are NVSwitches, and no fabric manager of the driver's version runs",
    FABRIC_MODULES: "The InfiniBand modules that an NVLink 5 fabric needs are not loaded",
    KERNEL_PENDING: "Another kernel boots next than the one that runs",
    NO_HEADERS: "The package lists have no headers for a kernel that the driver is compiled for",
    UNATTENDED: "Kernel or driver packages are replaced unattended",
    RUNTIME_OLD: "The container runtime is too old",
    RUNTIME_PATHS: "The toolkit would look for the container runtime where this distribution does not keep it",
    RUNTIME_SCHEMA: "containerd 2 runs with a configuration of an older schema",
    RUNTIME_NO_CRI: "containerd's CRI is disabled",
    CGROUP_DRIVERS: "The kubelet and the container runtime use different cgroup drivers",
    NODE_NAME: "The machine at this address is another node of the cluster, or under another name",
    OTHER_SYSTEM: "A host runs another operating system than its pool declares",
    DISK_SMALL: "There is little room for images and drivers",
    CLOCK_SKEW: "A host's clock is wrong",
    PROXY_UNKNOWN: "The host reaches the network through a proxy that the driver container does not know",
    HOST_UNREAD: "A host could not be read",
    IMAGE_ABSENT: "There is no driver image for this node",
    IMAGE_ARCHITECTURE: "The driver image does not exist for this kind of processor",
    IMAGE_UNKNOWN: "The registry could not be asked for the driver image",
    SWAP_ON: "The host swaps, and its kubelet does not start on such a host",
    LARGE_PAGES: "The driver container finds no headers for a kernel with pages of 64 KiB",
}
"""Code -> title."""
