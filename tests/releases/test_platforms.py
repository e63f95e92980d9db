"""Which images NVIDIA is known not to build for arm64."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision import releases
from gpu_provision.releases import COMPONENTS, platforms
from tests import data_file

CASES: dict[str, list[str]] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


@pytest.mark.parametrize("image", CASES["absent"])
def test_an_image_for_amd64_alone_has_a_source(image: str) -> None:
    """Also in a mirror; nothing is said of a node whose architecture is not known."""
    assert "multi-arch.mk" in platforms.why_absent(image, "arm64")
    assert [platforms.why_absent(image, known) for known in ("amd64", "")] == ["", ""]


@pytest.mark.parametrize("image", CASES["present or unknown"])
def test_what_no_source_says_is_not_refused(image: str) -> None:
    assert not platforms.why_absent(image, "arm64")


@pytest.mark.parametrize("name", releases.names())
def test_operands_of_all_releases_may_run_on_arm64(name: str) -> None:
    """A release whose operands exist for amd64 alone would need a finding at validate."""
    release = releases.release(name)
    images = [release.image(key).reference for key in (*COMPONENTS, "driver_manager") if release.image(key).version]
    assert [image for image in images if platforms.why_absent(image, "arm64")] == []
