"""Guesses at what the user meant."""

from __future__ import annotations

import pytest

from gpu_provision.inventory.json_schema import schema
from gpu_provision.inventory.schema_errors import suggest_value
from gpu_provision.model.text import did_you_mean, find_nearest, one_of


@pytest.mark.parametrize(
    ("word", "candidate"),
    [
        ("devicePlugin", "device_plugin"),
        ("Device-Plugin", "device_plugin"),
        ("drver", "driver"),
        ("nodez", "nodes"),
        ("something", ""),
        ("", ""),
    ],
)
def test_the_nearest_candidate(word: str, candidate: str) -> None:
    """Spelling conventions count for nothing; a word that is like none gets none."""
    assert find_nearest(word, ["device_plugin", "driver", "nodes"]) == candidate


def test_a_fix_names_the_nearest_or_gives_other_advice() -> None:
    """No guess is better than a wild one."""
    assert did_you_mean("t5", ["t4"], "Known: t4") == "Known: t4"
    assert did_you_mean("t4-inferense", ["t4-inference"]) == "Did you mean t4-inference?"


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")])
def test_lists_for_people(words: list[str], text: str) -> None:
    """With one word between the last two."""
    assert one_of(words) == text


@pytest.mark.parametrize(
    ("definition", "value", "better"),
    [
        ("name", "T4_Pool", "t4-pool"),
        ("name", "a" * 70, ""),
        ("os", "Ubuntu 22.04", "ubuntu22.04"),
        ("os", "ubuntu-24.04", "ubuntu24.04"),
        ("os", "Ubuntu", ""),
        ("driver_version", "v580.126.20", "580.126.20"),
        ("driver_version", "580.126.20-ubuntu22.04", "580.126.20"),
        ("repository", "https://nvcr.io/nvidia/", "nvcr.io/nvidia"),
        ("image", "nvcr.io/nvidia/driver:580.126.20", "driver"),
        ("quantity", "512MB", "512M"),
        ("quantity", "lots", ""),
    ],
)
def test_the_value_behind_a_malformed_one(definition: str, value: str, better: str) -> None:
    """Common slips are undone; nothing is made up."""
    assert suggest_value(value, schema()["$defs"][definition]["pattern"]) == better
