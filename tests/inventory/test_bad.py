"""Every inventory in bad/ gets the findings in the file beside it: all of them, in order, word for word.

After a change of wording: UPDATE_EXPECTED=1 pytest tests/inventory/test_bad.py, and read the difference.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from gpu_provision.inventory import check, load
from gpu_provision.model.codes import meanings
from gpu_provision.model.findings import Finding, InvalidInventoryError

BAD = Path(__file__).parent / "bad"
CODES = {code for code in meanings() if code.startswith("GP1")} | {"GP424", "GP676", "GP677", "GP678", "GP679"}
CASES = sorted(BAD.glob("*.yaml"), key=lambda file: file.stem)


def format_finding(finding: Finding) -> str:
    return f"{finding.severity}: {finding}".replace(f"{BAD}/", "")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_bad_inventory_gets_all_its_findings_at_once(case: Path) -> None:
    """Each finding names code, file:line, path, what is wrong, and the fix, in the order of lines, and no secret.

    Errors stop a run and come with all findings of the file; warnings alone do not.
    """
    findings, expected = check(case), case.with_suffix(".expected")
    text = "".join(f"{format_finding(finding)}\n" for finding in findings.all)
    if os.environ.get("UPDATE_EXPECTED"):
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")
    assert "hunter2" not in text
    assert {finding.code for finding in findings.all} <= CODES
    assert all(finding.where.startswith(str(case)) and finding.fix for finding in findings.all)
    lines = [int(finding.where.removeprefix(f"{case}:").split(" ")[0].split(":")[0]) for finding in findings.all]
    assert lines == sorted(lines) != []
    with pytest.raises(InvalidInventoryError) if findings.errors else nullcontext() as raised:
        assert load(case).path == str(case)
    assert raised is None or raised.value.findings == findings.all


def test_every_code_has_a_case() -> None:
    """A finding that no case shows would be untested prose. Those of files are in test_source and test_ssh_config."""
    shown = {finding.code for case in CASES for finding in check(case).all}
    assert CODES - shown == {"GP101", "GP102", "GP103", "GP104", "GP165"}
