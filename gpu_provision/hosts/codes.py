"""Every finding about a host: codes are stable, so that people can search for them."""

from __future__ import annotations

MODULE_MISSING = "GP601"
UNREADABLE = "GP602"
REBOOT_NEEDED = "GP603"
HOST_FAILED = "GP604"
HOST_UNFINISHED = "GP605"
HOSTS_LEFT_OUT = "GP606"
ENDED_EARLY = "GP607"
UNKNOWN_HOST = "GP608"
HOST_KEY = "GP682"
LOGIN_REFUSED = "GP683"
NAME_UNKNOWN = "GP684"
NO_SSH = "GP685"
SILENT = "GP686"
NO_CONNECTION = "GP687"
SUDO = "GP688"
CANNOT_WRITE = "GP689"
BROKE_DOWN = "GP693"
NOT_MADE = "GP694"
NOT_ROOT = "GP680"
CANNOT_HOLD = "GP681"
NO_HEADERS = "GP665"
HUGEPAGES_IMPOSSIBLE = "GP666"
NO_RUNTIME_UNIT = "GP667"
NO_PERSISTENCE = "GP668"
KUBELET_UNAWARE = "GP669"
RUNTIME_LEFT = "GP670"
RUNTIME_REJECTS = "GP671"
RUNTIME_RESTORED = "GP672"
RUNTIME_DOWN = "GP673"
NO_PROXY_HERE = "GP674"
NO_TRUST_STORE = "GP675"
NOT_BACK = "GP697"
REBOOT_STOPPED = "GP698"
REBOOT_REFUSED = "GP699"
REBOOT_IN_VAIN = "GP700"
TOOLKIT_LEFT = "GP707"
NO_CLUSTER_HOST = "GP618"
NO_INVENTORY_FILE = "GP619"

CODES: dict[str, str] = {
    MODULE_MISSING: "A kernel module is not part of the running kernel",
    UNREADABLE: "The state of a host cannot be read",
    REBOOT_NEEDED: "A host needs a reboot",
    HOST_FAILED: "The cluster phase is held back: a host failed",
    HOST_UNFINISHED: "The cluster phase is held back: a host is not finished",
    HOSTS_LEFT_OUT: "Simulated hosts are left out: this machine cannot isolate them",
    ENDED_EARLY: "The host phase ended unexpectedly",
    UNKNOWN_HOST: "A host named by a limit is not in the inventory",
    HOST_KEY: "A host shows another SSH key than is known, or one that nobody has vouched for",
    LOGIN_REFUSED: "A host does not let us in over SSH",
    NAME_UNKNOWN: "The address of a host is not known",
    NO_SSH: "Nobody answers SSH at the address of a host",
    SILENT: "A host takes a connection and then says nothing",
    NO_CONNECTION: "A host cannot be reached, or the connection to it broke off",
    SUDO: "sudo refuses us on a host, or wants a password",
    CANNOT_WRITE: "A file system of a host takes no writes: it is full or read-only",
    BROKE_DOWN: "A host cannot be worked on for a reason that nobody foresaw",
    NOT_MADE: "A host could not be made as declared: a command failed there",
    NOT_ROOT: "What is kept of a host's files can be read by root alone",
    CANNOT_HOLD: "Packages cannot be held on a host",
    NO_HEADERS: "There are no headers for a kernel that the host compiles its driver for",
    HUGEPAGES_IMPOSSIBLE: "A host cannot have the declared huge pages",
    NO_RUNTIME_UNIT: "Limits cannot be set: no unit runs a container runtime",
    NO_PERSISTENCE: "A host's driver cannot be kept initialized",
    KUBELET_UNAWARE: "The kubelet does not count the huge pages yet",
    RUNTIME_LEFT: "The container runtime is left as it is",
    RUNTIME_REJECTS: "The container runtime's configuration was not changed: the result would not work",
    RUNTIME_RESTORED: "The container runtime did not work with a changed configuration, and has its old one back",
    RUNTIME_DOWN: "The container runtime does not answer",
    NO_PROXY_HERE: "The container runtime cannot be told of a proxy here",
    NO_TRUST_STORE: "A host has no store of trusted certificates that is known",
    NOT_BACK: "A machine, or its node, is not back after a reboot",
    REBOOT_STOPPED: "A host is not rebooted: the reboot of another one went wrong",
    REBOOT_REFUSED: "A host needs a reboot that is not for this run to do",
    REBOOT_IN_VAIN: "A host was rebooted and still needs a reboot",
    NO_CLUSTER_HOST: "A deploy works on a cluster host, and pyinfra's inventory has none",
    NO_INVENTORY_FILE: "The data of a cluster host names no inventory file",
    TOOLKIT_LEFT: "The container toolkit's programs stay on a host: something still uses them",
}
"""Code -> title."""
