"""Codes of what is wrong with a call; docs/findings.md is made from them."""

from __future__ import annotations

USAGE = "GP002"
NOTHING_MATCHES = "GP006"
NOT_AS_DECLARED = "GP010"

CODES: dict[str, str] = {
    USAGE: "A command, option or argument that does not exist or does not fit",
    NOTHING_MATCHES: "An option names a component or a host that this inventory does not have",
    NOT_AS_DECLARED: "Validating needs a cluster that is as declared",
}
