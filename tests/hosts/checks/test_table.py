"""The documentation's tables."""

from __future__ import annotations

from tests.hosts.checks.table import PAGE, page


def test_the_page_is_up_to_date() -> None:
    """Else: python -m tests.hosts.checks.table."""
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
