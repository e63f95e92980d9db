"""Codes of the findings that components report, each with the sentence that documentation prints."""

from __future__ import annotations

OS_UNKNOWN = "GP401"
NO_DRIVER_IMAGE = "GP402"
OS_DIFFERS = "GP403"
POOL_CONFLICT = "GP404"
UNCLAIMED = "GP405"
HOOK_RUNTIME = "GP406"
RUNTIME_WITHOUT_CDI = "GP407"
STAYS_TAINTED = "GP408"
DRIVER_GUESSED = "GP410"

CODES: dict[str, str] = {
    OS_UNKNOWN: "The operating system of a GPU node is not known, so no driver image can be chosen for it.",
    NO_DRIVER_IMAGE: "NVIDIA publishes no driver image for the operating system of a GPU node.",
    OS_DIFFERS: "A node runs another operating system than its pool declares; the node's own word is used.",
    POOL_CONFLICT: "A node of the cluster is selected by more than one pool, so none of them gets it.",
    UNCLAIMED: "A node of the cluster has an NVIDIA GPU, but no pool of the inventory claims it.",
    HOOK_RUNTIME: "CDI is off and only some GPU nodes run CRI-O, so no runtime class fits all of them.",
    RUNTIME_WITHOUT_CDI: "CDI is on, and the container runtime of a GPU node is too old to know it.",
    STAYS_TAINTED: "A node has the startup taint, and no validation runs there after which it would be taken off.",
    DRIVER_GUESSED: "The driver is auto, and it is unknown whether a node has one of its own: it gets the container.",
}
