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
NOT_ROOT = "GP680"
CANNOT_HOLD = "GP681"
RUNTIME_LEFT = "GP670"
RUNTIME_REJECTS = "GP671"
RUNTIME_RESTORED = "GP672"
RUNTIME_DOWN = "GP673"

CODES: dict[str, str] = {
    MODULE_MISSING: "A kernel module is not part of the running kernel",
    UNREADABLE: "The state of a host cannot be read",
    REBOOT_NEEDED: "A host needs a reboot",
    HOST_FAILED: "The cluster phase is held back: a host failed",
    HOST_UNFINISHED: "The cluster phase is held back: a host is not finished",
    HOSTS_LEFT_OUT: "Simulated hosts are left out: this machine cannot isolate them",
    ENDED_EARLY: "The host phase ended unexpectedly",
    UNKNOWN_HOST: "A host named by a limit is not in the inventory",
    NOT_ROOT: "What is kept of a host's files can be read by root alone",
    CANNOT_HOLD: "Packages cannot be held on a host",
    RUNTIME_LEFT: "containerd's imports cannot be changed here",
    RUNTIME_REJECTS: "containerd's configuration was not changed: the result would not work",
    RUNTIME_RESTORED: "containerd did not work with a changed configuration, and has its old one back",
    RUNTIME_DOWN: "containerd does not answer",
}
"""Code -> title."""
