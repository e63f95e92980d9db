"""Which taints keep pods off a node."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.components.pods import first_untolerated

TEAM = {"key": "team", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "toleration", "told"),
    [
        (TEAM, {}, "team=ml:NoSchedule"),
        (TEAM, {"key": "team", "operator": "Exists"}, ""),
        (TEAM, {"key": "team", "operator": "Exists", "effect": "NoExecute"}, "team=ml:NoSchedule"),
        (TEAM, {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}, ""),
        (TEAM, {"key": "team", "value": "ml"}, ""),
        (TEAM, {"key": "team", "value": "web"}, "team=ml:NoSchedule"),
        (TEAM, {"operator": "Exists"}, ""),
        (TEAM, {"operator": "Exists", "effect": "NoSchedule"}, ""),
        ({"key": "drain", "effect": "NoExecute"}, {}, "drain:NoExecute"),
        ({"key": "drain", "effect": "PreferNoSchedule"}, {}, ""),
        ({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}, {}, ""),
    ],
)
def test_a_taint_is_tolerated_as_the_scheduler_says(taint: Any, toleration: Any, told: str) -> None:
    """Kubernetes' own taints repeat conditions of the node, which are its reason."""
    assert first_untolerated([taint], [toleration] if toleration else []) == told
