"""What an API server of a given version knows. An unknown version, as offline, counts as a new one."""

from __future__ import annotations

import re

from gpu_provision.model.cluster import ClusterFacts


def has_internal_traffic_policy(facts: ClusterFacts) -> bool:
    """Whether Services have ``internalTrafficPolicy``: on by default since Kubernetes 1.22."""
    return _at_least(facts, 1, 22)


def _at_least(facts: ClusterFacts, major: int, minor: int) -> bool:
    match = re.match(r"v?(\d+)\.(\d+)", facts.version)
    return match is None or (int(match[1]), int(match[2])) >= (major, minor)
