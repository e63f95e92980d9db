"""The table of the reference's fields, and docs/parity.md."""

from __future__ import annotations

import pytest

from gpu_provision.adopt import reference
from tools import parity as page
from tools.parity import Coverage, FieldCoverage

STATUSES = page.parity()
OF_THE_CHART = frozenset({"draDriver", "fullnameOverride", "nameOverride", "node-feature-discovery", "operator"})
"""Values that the list of fields has in groups, or not at all, as they are not about operands."""


def test_the_page_is_current() -> None:
    assert page.page() == page.PAGE.read_text(encoding="utf-8"), "run make docs"


@pytest.mark.parametrize("each", [each for each in STATUSES if each.key], ids=lambda each: f"{each.kind} {each.field}")
def test_a_claimed_field_has_a_key_in_the_schema(each: FieldCoverage) -> None:
    assert reference.has_key(each.key)


def test_a_key_of_no_inventory_is_not_claimed() -> None:
    assert not reference.has_key("driver.novelty")
    assert not reference.has_key("pools.*.novelty")
    assert reference.has_key("pools.*.driver.env")


def test_every_field_that_is_not_here_has_a_reason() -> None:
    assert [each for each in STATUSES if each.status is not Coverage.HERE and not each.reason] == []


@pytest.mark.parametrize("kind", page.KINDS)
def test_a_row_is_about_a_field_of_its_kind(kind: str) -> None:
    """A misspelt name would leave a field without its reason."""
    fields = reference.field_names(kind) + (reference.field_names(reference.POLICY) if kind == "values" else ())
    sections = {prefix for field in fields for prefix in reference.prefixes(field)}
    rows = [name for name in reference.rows_of(kind) if name and name.partition(".")[0] not in OF_THE_CHART]
    assert [name for name in rows if name not in sections and name.rpartition(".")[0] not in sections] == []


def test_no_row_is_about_a_field_that_a_setting_carries() -> None:
    """Such a row says nothing any more."""
    assert [*page.replaced_rows()] == []


def test_a_declared_setting_wins_over_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a setting that is added is here before its row is gone; only what it lacks counts."""
    late = reference.ReferenceRow(later="Not yet.")
    monkeypatch.setattr(reference, "row_of", lambda *_: late)
    assert page.status_of("ClusterPolicy", "driver.env").status is Coverage.HERE
    assert page.status_of("ClusterPolicy", "psp.enabled").status is Coverage.ABSENT
    monkeypatch.setattr(reference, "row_of", lambda *_: reference.ReferenceRow(lacks="A part."))
    assert page.status_of("ClusterPolicy", "driver.env").status is Coverage.PARTLY
