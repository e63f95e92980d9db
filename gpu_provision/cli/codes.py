"""Codes of what the command line itself has to say; docs/findings.md is made from them."""

from __future__ import annotations

INTERNAL = "GP001"
INTERRUPTED = "GP003"
NO_INVENTORY = "GP004"
NOT_CONFIRMED = "GP005"
NOT_WRITABLE = "GP007"
NO_SANDBOX = "GP009"
NO_ENDPOINT = "GP011"
NO_PLACE_FOR_REPORT = "GP370"
NO_LOCAL_RECORD = "GP371"
DAMAGED_LOCAL_RECORD = "GP372"
NO_PLAN = "GP352"
OTHER_FORMAT = "GP353"
OTHER_CLUSTER = "GP354"
OTHER_INVENTORY = "GP355"
MOVED = "GP356"

CODES: dict[str, str] = {
    INTERNAL: "A mistake in gpu-provision itself; the log holds the traceback",
    INTERRUPTED: "The run was interrupted; running it again goes on from there",
    NO_INVENTORY: "No inventory was named and none was found",
    NOT_CONFIRMED: "A change of a real cluster was neither confirmed nor allowed with --yes",
    NOT_WRITABLE: "A file or folder could not be written",
    NO_SANDBOX: "The sandbox that a command needs is not running",
    NO_ENDPOINT: "A controller cannot answer probes at the address that it was given",
    NO_PLACE_FOR_REPORT: "The page of a run cannot be written where it is to go",
    NO_LOCAL_RECORD: "A run is not on record on this machine, so there can be no page about it",
    DAMAGED_LOCAL_RECORD: "The local record of a run cannot be read",
    NO_PLAN: "A file is no plan, is not complete, was changed, or does not fit the schema of plan files",
    OTHER_FORMAT: "A plan file is of another version than this tool knows",
    OTHER_CLUSTER: "A plan was made for another cluster",
    OTHER_INVENTORY: "A plan was made from another inventory, or from what the inventory was before",
    MOVED: "Hosts or cluster have moved since a plan was made; what has moved is named",
}
