"""The page of reliances names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).parent


def test_every_reliance_names_a_test_that_exists() -> None:
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", (_FOLDER / "README.md").read_text("utf-8"))
    assert len(named) > 20
    lost = [f"{file}::{test}" for file, test in named if f"def {test}(" not in (_FOLDER / file).read_text("utf-8")]
    assert not lost
