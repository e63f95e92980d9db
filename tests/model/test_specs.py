"""What a container runtime is asked to pull."""

from __future__ import annotations

from gpu_provision.model.specs import Image

IMAGE = Image(repository="nvcr.io/nvidia", image="driver", version="595.91.07")


def test_tags_follow_a_colon_and_digests_an_at_sign() -> None:
    assert IMAGE.reference == "nvcr.io/nvidia/driver:595.91.07"
    assert IMAGE.tagged("sha256:0123") == "nvcr.io/nvidia/driver@sha256:0123"
