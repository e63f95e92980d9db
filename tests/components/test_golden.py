"""What each component makes of the sandbox's inventory, and of settings that change much, word for word.

The cases are in golden.yaml. After an intended change: ``UPDATE_GOLDEN=1 python -m pytest
tests/components/test_golden.py``, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.components import render_manifests
from tests.components import builders

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = [(case, component) for case, given in builders.CASES.items() for component in given["components"]]


class _Plain(yaml.SafeDumper):
    """Writes every value in full: no anchors, scripts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        """Repeat what occurs twice."""
        del data
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _block)


@pytest.mark.parametrize(("case", "component"), CASES)
def test_a_component_is_as_recorded(case: str, component: str) -> None:
    """A change of a manifest restarts pods in the field, so each is read before it is made."""
    text = yaml.dump_all(
        render_manifests(builders.case_context(case))[component], Dumper=_Plain, sort_keys=False, width=1000
    )
    path = GOLDEN / component / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def test_every_golden_file_has_its_case() -> None:
    assert {(path.stem, path.parent.name) for path in GOLDEN.rglob("*.yaml")} == set(CASES)
