"""Codes of findings about the operator."""

from __future__ import annotations

STACKS_EXIST = "GP390"
NOT_IN_TIME = "GP391"
NAMESPACE_STAYS = "GP392"

CODES: dict[str, str] = {
    STACKS_EXIST: "The operator is not removed while there are stacks: nobody could take them off the cluster any more",
    NOT_IN_TIME: "Something of the operator did not become ready, or did not go, within the time given",
    NAMESPACE_STAYS: "A namespace stays, since somebody else has something in it",
}
"""Code -> title."""
