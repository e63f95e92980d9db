"""The node status exporter.

Real: its pod, its Service with the address of the pod, the API server's proxy to it, and the files of the validations
that it reads, which other pods write. A stand-in: the program, which has these metrics of the reference's exporter.
"""

from __future__ import annotations

import pytest

from tests.real.node.optional.conftest import FirstRun, metrics
from tests.real.node.settings import NODE
from tests.real.node.user import NodeUser

pytestmark = pytest.mark.real


def ready(text: str) -> dict[str, str]:
    """Return the value of each validation's metric."""
    pairs = (line.rsplit(" ", 1) for line in text.splitlines())
    start, end = "gpu_operator_node_", f'_ready{{node="{NODE}"}}'
    return {name.removeprefix(start).removesuffix(end): value for name, value in pairs}


def test_its_metrics_follow_the_validations(node: NodeUser, first_run: FirstRun) -> None:
    """While the validator waits for a module, and after the run."""
    assert ready(first_run.metrics) == {"driver": "1", "toolkit": "0", "cuda": "0", "plugin": "0"}
    assert ready(metrics(node)) == {"driver": "1", "toolkit": "1", "cuda": "1", "plugin": "1"}
