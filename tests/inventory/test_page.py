"""docs/inventory.md, the reference of all keys."""

from __future__ import annotations

from pathlib import Path

from gpu_provision.inventory import schema
from tools.inventory_page import markdown

PAGE = Path(__file__).parents[2] / "docs" / "inventory.md"


def test_the_page_is_current() -> None:
    """After a change of the schema: python -m tools.inventory_page > docs/inventory.md."""
    assert PAGE.read_text(encoding="utf-8") == markdown()


def test_every_top_level_key_and_every_section_is_there() -> None:
    """A reference with holes would be none."""
    for key, part in schema()["properties"].items():
        assert f"| `{key}` |" in markdown()
        assert part.get("type") != "object" or "properties" not in part or f"## `{key}`" in markdown()


def test_tables_have_no_stray_columns() -> None:
    """A bar or a tag inside a cell would break the table."""
    for line in markdown().splitlines():
        if line.startswith("| "):
            assert line.replace("\\|", "").count("|") == 5, line
            assert "<" not in "".join(line.split("`")[::2]), line
