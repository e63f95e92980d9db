"""The table of GPU models."""

from __future__ import annotations

import re

from gpu_provision.sandbox.fleet import models


def test_every_model_is_complete() -> None:
    """PCI ids are four hexadecimal digits, and each alias names one model."""
    for known_as, gpu in models().items():
        assert re.fullmatch(r"[0-9a-f]{4}", gpu.device), known_as
        assert gpu.pci_class in {"0300", "0302"}
        assert gpu.memory > 10_000
        assert " " not in gpu.label


def test_short_names_are_aliases() -> None:
    """People write H100; the product has a longer name."""
    assert models()["H100"] is models()["NVIDIA H100 80GB HBM3"] or models()["H100"].device == "2330"
    assert models()["T4"].label == "Tesla-T4"
