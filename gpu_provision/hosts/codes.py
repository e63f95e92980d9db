"""Codes of findings about hosts. They are stable: people search for them, and inventories name those of preflight."""

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
HEADERS_UNAVAILABLE = "GP631"
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

MODULE_MISSING = "GP601"
UNREADABLE = "GP602"
REBOOT_NEEDED = "GP603"
HOST_FAILED = "GP604"
HOST_UNFINISHED = "GP605"
HOSTS_LEFT_OUT = "GP606"
ENDED_EARLY = "GP607"
UNKNOWN_HOST = "GP608"
NO_CLUSTER_HOST = "GP618"
NO_INVENTORY_FILE = "GP619"
NO_HEADERS = "GP665"
HUGEPAGES_IMPOSSIBLE = "GP666"
NO_RUNTIME_UNIT = "GP667"
NO_PERSISTENCE = "GP668"
KUBELET_UNAWARE = "GP669"
RUNTIME_LEFT = "GP670"
RUNTIME_REJECTS = "GP671"
RUNTIME_RESTORED = "GP672"
RUNTIME_DOWN = "GP673"
PROXY_UNSUPPORTED = "GP674"
NO_TRUST_STORE = "GP675"
NOT_ROOT = "GP680"
HOLDS_UNSUPPORTED = "GP681"
HOST_KEY = "GP682"
LOGIN_REFUSED = "GP683"
NAME_UNKNOWN = "GP684"
NO_SSH = "GP685"
HOST_SILENT = "GP686"
NO_CONNECTION = "GP687"
SUDO = "GP688"
CANNOT_WRITE = "GP689"
UNEXPECTED_ERROR = "GP693"
COMMAND_FAILED = "GP694"
NOT_BACK = "GP697"
REBOOT_STOPPED = "GP698"
REBOOT_REFUSED = "GP699"
REBOOT_NO_EFFECT = "GP700"
TOOLKIT_LEFT = "GP707"

PREFLIGHT_CODES: dict[str, str] = {
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
    HEADERS_UNAVAILABLE: "The package lists have no headers for a kernel that the driver is compiled for",
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
"""Code -> title, of the rules in `checks`."""

CODES: dict[str, str] = {
    **PREFLIGHT_CODES,
    MODULE_MISSING: "A kernel module is not part of the running kernel",
    UNREADABLE: "The state of a host cannot be read",
    REBOOT_NEEDED: "A host needs a reboot",
    HOST_FAILED: "The cluster phase is held back: a host failed",
    HOST_UNFINISHED: "The cluster phase is held back: a host is not finished",
    HOSTS_LEFT_OUT: "Simulated hosts are left out: this machine cannot isolate them",
    ENDED_EARLY: "The host phase ended unexpectedly",
    UNKNOWN_HOST: "A host named by a limit is not in the inventory",
    HOST_KEY: "A host shows another SSH key than the known one, or strict checking does not know its key",
    LOGIN_REFUSED: "SSH authentication failed",
    NAME_UNKNOWN: "The address of a host is not known",
    NO_SSH: "No SSH server answers at the address of a host",
    HOST_SILENT: "A host takes a connection and then says nothing",
    NO_CONNECTION: "A host cannot be reached, or the connection to it broke off",
    SUDO: "sudo refuses the user on a host, or wants a password",
    CANNOT_WRITE: "A file system of a host takes no writes: it is full or read-only",
    UNEXPECTED_ERROR: "Unexpected error on a host",
    COMMAND_FAILED: "A host could not be made as declared: a command failed there",
    NOT_ROOT: "What is kept of a host's files can be read by root alone",
    HOLDS_UNSUPPORTED: "Packages cannot be held on a host",
    NO_HEADERS: "There are no headers for a kernel that the host compiles its driver for",
    HUGEPAGES_IMPOSSIBLE: "A host cannot have the declared huge pages",
    NO_RUNTIME_UNIT: "Limits cannot be set: no unit runs a container runtime",
    NO_PERSISTENCE: "A host's driver cannot be kept initialized",
    KUBELET_UNAWARE: "The kubelet does not count the huge pages yet",
    RUNTIME_LEFT: "The container runtime is left as it is",
    RUNTIME_REJECTS: "The container runtime's configuration was not changed: the result would not work",
    RUNTIME_RESTORED: "The container runtime did not work with a changed configuration, and has its old one back",
    RUNTIME_DOWN: "The container runtime does not answer",
    PROXY_UNSUPPORTED: "The container runtime's proxy cannot be set here",
    NO_TRUST_STORE: "A host has no store of trusted certificates that is known",
    NOT_BACK: "A machine, or its node, is not back after a reboot",
    REBOOT_STOPPED: "A host is not rebooted: the reboot of another one went wrong",
    REBOOT_REFUSED: "A host needs a reboot that this run may not do",
    REBOOT_NO_EFFECT: "A host was rebooted and still needs a reboot",
    NO_CLUSTER_HOST: "A deploy works on a cluster host, and pyinfra's inventory has none",
    NO_INVENTORY_FILE: "The data of a cluster host names no inventory file",
    TOOLKIT_LEFT: "The container toolkit's programs stay on a host: something still uses them",
}
"""Code -> title."""
