"""ClusterPlan image references."""

from __future__ import annotations

import pytest

from gpu_provision.images.registry import Reference, parse_reference


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("nvcr.io/nvidia/driver:580-ubuntu22.04", Reference("nvcr.io", "nvidia/driver", "580-ubuntu22.04")),
        ("registry:5000/a/b@sha256:12", Reference("registry:5000", "a/b", "sha256:12")),
        ("localhost/x:1", Reference("localhost", "x", "1")),
        ("busybox", Reference("docker.io", "library/busybox", "latest")),
        ("nvidia/cuda:12", Reference("docker.io", "nvidia/cuda", "12")),
        ("r.io/a:tag@sha256:12", Reference("r.io", "a", "sha256:12")),
    ],
)
def test_references_are_read_as_runtimes_read_them(text: str, reference: Reference) -> None:
    """A host has a dot or a port, or is localhost; a digest counts more than a tag."""
    assert parse_reference(text) == reference


def test_hub_answers_under_another_name() -> None:
    """docker.io itself has no API."""
    assert parse_reference("nvidia/cuda:12").manifest == "https://registry-1.docker.io/v2/nvidia/cuda/manifests/12"
