"""Whose driver a node has: a container's or the host's own. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_provision.components.labels import DEPLOY_DRIVER, DRIVER_GROUP, HOST_DRIVER, PRE_INSTALLED
from gpu_provision.model.cluster import DriverBasis, DriverChoice
from gpu_provision.model.specs import DriverSpec


def choose(spec: DriverSpec, *, read: str | None, labels: Mapping[str, str]) -> DriverChoice:
    """Decide whose driver a node has; what was read a moment ago outweighs what an earlier run has labelled.

    Args:
        spec: The driver settings of the node's pool.
        read: Version of a usable driver that was read on the host; empty if it has none, None if nobody looked.
        labels: The node's labels.
    """
    if not spec.enabled:
        return DriverChoice(on_host=True, basis=DriverBasis.DECLARED)
    if read == "":
        return DriverChoice(on_host=False, basis=DriverBasis.READ)
    if not spec.prefer_host:
        return DriverChoice(on_host=False, basis=DriverBasis.DECLARED)
    if read:
        return DriverChoice(on_host=True, basis=DriverBasis.READ, version=read)
    return _as_labelled(labels)


def _as_labelled(labels: Mapping[str, str]) -> DriverChoice:
    """Go by what an earlier run, or the driver manager, has written on the node; else guess."""
    if labels.get(DEPLOY_DRIVER) == PRE_INSTALLED or HOST_DRIVER in labels:
        return DriverChoice(on_host=True, basis=DriverBasis.LABEL, version=labels.get(HOST_DRIVER, ""))
    return DriverChoice(on_host=False, basis=DriverBasis.LABEL if DRIVER_GROUP in labels else DriverBasis.GUESS)
