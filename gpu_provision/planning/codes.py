"""Codes of findings about what a plan would do to others' work."""

from __future__ import annotations

ABSENT = "GP210"
NOT_LOOKED_FOR = "GP211"
PART_ONLY = "GP380"
OTHER_TOOL = "GP381"
TOO_MANY_NODES = "GP382"
PODS_WOULD_BE_LOST = "GP695"
NOT_DRAINED = "GP696"

CODES: dict[str, str] = {
    ABSENT: "A ConfigMap or Secret does not exist that pods of the stack refer to",
    NOT_LOOKED_FOR: "Whether ConfigMaps and Secrets exist that pods refer to is not known: a right to read is missing",
    PART_ONLY: "A part of the inventory is left out",
    OTHER_TOOL: "The last run was of another version of the tool",
    TOO_MANY_NODES: "A stack has more nodes than the record of their validations has room for",
    PODS_WOULD_BE_LOST: "A node is not drained: it has pods, or data of pods, that nothing would bring back",
    NOT_DRAINED: "A node could not be drained in time",
}
"""Code -> title."""
