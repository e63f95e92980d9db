"""Codes of what the command line itself has to say; docs/findings.md is made from them."""

from __future__ import annotations

INTERNAL = "GP001"
USAGE = "GP002"
INTERRUPTED = "GP003"
NO_INVENTORY = "GP004"
NOT_CONFIRMED = "GP005"
NOTHING_MATCHES = "GP006"
NOT_WRITABLE = "GP007"
HOST_FAILED = "GP008"
NO_SANDBOX = "GP009"
NOT_AS_DECLARED = "GP010"

CODES: dict[str, str] = {
    INTERNAL: "A mistake in gpu-provision itself; the log holds the traceback",
    USAGE: "A command, option or argument that does not exist or does not fit",
    INTERRUPTED: "The run was interrupted; running it again goes on from there",
    NO_INVENTORY: "No inventory was named and none was found",
    NOT_CONFIRMED: "A change of a real cluster was neither confirmed nor allowed with --yes",
    NOTHING_MATCHES: "An option names a component or a host that this inventory does not have",
    NOT_WRITABLE: "A file or folder could not be written",
    HOST_FAILED: "A host could not be made as declared",
    NO_SANDBOX: "The sandbox that a command needs is not running",
    NOT_AS_DECLARED: "Validating needs a cluster that is as declared",
}
