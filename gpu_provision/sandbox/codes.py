"""The codes of the findings that the sandbox reports; docs/findings.md lists them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "GP701": "The fleet file cannot be read",
    "GP702": "The fleet file has an unknown key",
    "GP703": "A value in the fleet file is not what it should be",
    "GP704": "The fleet file names an unknown GPU model",
    "GP705": "Two simulated nodes have the same name",
    "GP706": "A fault is not one that the sandbox knows",
    "GP710": "The sandbox did not become ready in time",
    "GP711": "The sandbox ended while it started",
    "GP712": "The sandbox's directory cannot be used",
    "GP713": "The sandbox runs with another fleet, or was started by other code of the tool",
    "GP714": "The sandbox did not end when asked to",
    "GP715": "The sandbox runs but does not answer",
    "GP720": "The cluster has nodes of its own",
    "GP721": "The cluster of simulated nodes does not answer, or refuses",
}
