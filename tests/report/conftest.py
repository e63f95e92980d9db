"""Samples and golden texts for the views' tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


def _load_samples() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_samples", HERE / "samples.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["report_samples"] = module
    spec.loader.exec_module(module)
    return module


_SAMPLES = _load_samples()


@pytest.fixture
def samples() -> ModuleType:
    """The hand-made values of samples.py."""
    return _SAMPLES


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare a text with tests/report/golden/<name>.txt; UPDATE_GOLDEN=1 writes it instead."""

    def compare(name: str, text: str) -> None:
        path = HERE / "golden" / f"{name}.txt"
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(f"{text}\n", encoding="utf-8")
        assert f"{text}\n" == path.read_text(encoding="utf-8")

    return compare
