"""What others have in a namespace: first, what there can be at all."""

from __future__ import annotations

import json
from collections.abc import Callable

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.strangers import resources


def test_a_group_that_is_named_but_gone_has_nothing(answering: Callable[..., Cluster]) -> None:
    """As for a moment after its only definition was deleted."""
    groups = {"groups": [{"preferredVersion": {"groupVersion": "gpu-provision.io/v1alpha1"}}]}
    cluster = answering((200, {}, json.dumps(groups).encode()), (404, {}, b""))
    assert resources(cluster) == []
