"""Codes of what `gpu-provision verify` has to say; docs/findings.md is made from them."""

from __future__ import annotations

NOT_INSTALLED = "GP800"
NOT_RUN = "GP801"
NO_SSH = "GP802"

CODES: dict[str, str] = {
    NOT_INSTALLED: "The acceptance tests need packages that are not installed",
    NOT_RUN: "The acceptance tests could not be run",
    NO_SSH: "A host cannot be logged in to",
}
"""Code -> title."""
