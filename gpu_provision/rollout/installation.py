"""What the installation of a driver depends on: two pods of one digest have the same driver."""

from __future__ import annotations

from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest

_DIGEST = "DRIVER_CONFIG_DIGEST"


def installation(pod: Manifest) -> str:
    """Return the digest of all that a driver's installation depends on, as the driver manager itself compares it.

    A pod that was adopted says by a label which of our digests its own stands for.
    """
    if taken_over := ((pod.get("metadata") or {}).get("labels") or {}).get(labels.INSTALLATION):
        return str(taken_over)
    variables = (variable for each in pod["spec"]["containers"] for variable in each.get("env") or ())
    return next((each.get("value", "") for each in variables if each["name"] == _DIGEST), "")
