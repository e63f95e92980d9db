"""What scenarios read without kubectl is what kubectl reads."""

from __future__ import annotations

import pytest

from tests.scenarios.reading import path_of


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("pods", "/api/v1/namespaces/default/pods"),
        ("pod job", "/api/v1/namespaces/default/pods/job"),
        ("pods -A", "/api/v1/pods"),
        ("pods -n operands -l app=a", "/api/v1/namespaces/operands/pods?labelSelector=app%3Da"),
        ("daemonset exporter -n operands", "/apis/apps/v1/namespaces/operands/daemonsets/exporter"),
        ("daemonset -n operands exporter", "/apis/apps/v1/namespaces/operands/daemonsets/exporter"),
        ("configmap -n operands notes", None),
        ("node t4-1", "/api/v1/nodes/t4-1"),
        ("nodes --field-selector a=b", "/api/v1/nodes?fieldSelector=a%3Db"),
        ("gpustack main", "/apis/gpu-provision.io/v1alpha1/gpustacks/main"),
        ("daemonsets,services -n operands", None),
        ("pdb web", None),
        ("pods --show-labels", None),
    ],
)
def test_what_is_typed_becomes_a_path(typed: str, path: str | None) -> None:
    """Or nothing, and then kubectl is asked."""
    assert path_of(typed.split()) == path
