"""Label selectors, as users write them and as objects carry them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.model.label_selectors import SelectorError, parse_selector, selector_of
from tests import data_file

CASES = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
TRAINING = {"app": "training", "tier": "batch"}
HOSTILE = ("a=$(id)", "-a", "a in (b,-c)", "a notin (../..)", "!$(id)", f"a={'b' * 64}", f"{'a' * 64}=b")


@pytest.mark.parametrize(("text", "selects"), CASES["texts"])
def test_a_text_selects_as_in_kubectl(text: str, *, selects: bool) -> None:
    """A missing label is not equal to anything, and in no set."""
    assert parse_selector(text)(TRAINING) is selects


@pytest.mark.parametrize("text", ["a=b,,c", "a in b", "a in (b", "a=b=c", "a b", "=b", ",", "a=b c", *HOSTILE])
def test_what_is_no_selector_is_refused(text: str) -> None:
    """A selector that is misread would evict, or spare, the wrong pods."""
    with pytest.raises(SelectorError):
        parse_selector(text)


@pytest.mark.parametrize(("selector", "selects"), CASES["fields"])
def test_a_field_selects_as_the_api_server_does(selector: dict[str, Any] | None, *, selects: bool) -> None:
    """An empty selector selects everything, an absent one nothing."""
    assert selector_of(selector)(TRAINING) is selects
