"""What each component makes of the sandbox's inventory, and of settings that change much, word for word.

The cases are in golden.yaml. Of a component, the first case is on record in full, and each further one as its
difference from the first. After an intended change: ``UPDATE_GOLDEN=1 python -m pytest
tests/components/test_golden.py``, then read the diff.
"""

from __future__ import annotations

import os
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.components import render_manifests
from gpu_provision.model.cluster import Manifest
from tests.components import builders

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = [(case, component) for case, given in builders.CASES.items() for component in given["components"]]
FIRST = {component: case for case, component in reversed(CASES)}


class _Plain(yaml.SafeDumper):
    """Writes every value in full: no anchors, scripts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        """Repeat what occurs twice."""
        del data
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _block)


@cache
def rendered(case: str) -> dict[str, list[Manifest]]:
    return render_manifests(builders.case_context(case))


def recorded(case: str, component: str) -> tuple[Path, str]:
    """Return the file of a case and the text that it has to have."""
    first, text = (
        yaml.dump_all(rendered(name)[component], Dumper=_Plain, sort_keys=False, width=1000)
        for name in (FIRST[component], case)
    )
    if case == FIRST[component]:
        return GOLDEN / component / f"{case}.yaml", text
    lines = [*unified_diff(first.splitlines(keepends=True), text.splitlines(keepends=True), n=2)][2:]
    # Without the numbers of lines, which change with every line above.
    return GOLDEN / component / f"{case}.diff", "".join("@@\n" if line.startswith("@@") else line for line in lines)


@pytest.mark.parametrize(("case", "component"), CASES)
def test_a_component_is_as_recorded(case: str, component: str) -> None:
    """A change of a manifest restarts pods in the field, so each is read before it is made."""
    path, text = recorded(case, component)
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def test_every_golden_file_has_its_case() -> None:
    files = {path for path in GOLDEN.rglob("*") if path.is_file()}
    assert files == {recorded(case, component)[0] for case, component in CASES}
