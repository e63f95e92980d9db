"""YAML becomes a document that knows where everything stands; nothing in a file can make the parser fail."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from gpu_provision.inventory import check, yaml_parser
from gpu_provision.inventory.document import Document, Source, format_path
from tests import fuzzing

HERE = Path(__file__).parent
PROD = HERE.parents[1] / "inventories" / "prod.yaml"


def document(text: str) -> Document:
    result, findings = yaml_parser.parse(Source("stack.yaml", Path("/stack.yaml"), text, ""))
    assert not findings
    return result


TEXT = """\
name: stack
ssh:
  user: "0123"
nodes:
  - name: t4-1
    labels: {a: b,
      c: d}
  -
    name: t4-2
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("name",), 1),
        (("ssh",), 2),
        (("ssh", "user"), 3),
        (("nodes",), 4),
        (("nodes", 0), 5),
        (("nodes", 0, "labels", "c"), 7),
        (("nodes", 1), 9),
        (("nodes", 1, "missing", "deeper"), 9),
        (("ssh", "missing"), 2),
        (("missing",), 1),
        (("nodes", 7, "name"), 4),
    ],
)
def test_every_path_has_a_line(path: tuple[str | int, ...], line: int) -> None:
    """Its own, or that of the nearest thing around it."""
    assert document(TEXT).line(path) == line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-01-01", "2024-01-01"),
        ("=", "="),
        ("<<", "<<"),
        ("08", "08"),
        (".inf", ".inf"),
        ("!!str 5", "5"),
        ("'5'", "5"),
        ("yes", True),
        ("~", None),
        ("5", 5),
        ("5.5", 5.5),
    ],
)
def test_scalars_are_read_as_yaml_does_but_for_its_oddities(text: str, value: object) -> None:
    """A date, for one, is never wanted. Evidence shows what the user wrote, not what YAML made of it."""
    result = document(f"key: {text}")
    assert result.data == {"key": value}
    assert (item := result.item(("key",)))
    assert item.raw == text.removeprefix("!!str ").strip("'")


@pytest.mark.parametrize("case", sorted((HERE / "good").glob("*.yaml")), ids=lambda case: case.stem)
def test_data_is_what_pyyaml_reads(case: Path) -> None:
    """The parser is ours, the language is not."""
    text = case.read_text(encoding="utf-8-sig")
    assert document(text).data == yaml.safe_load(text)


@pytest.mark.parametrize("case", sorted(HERE.glob("*/*.yaml")), ids=lambda case: case.stem)
def test_it_works_without_the_c_library(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every PyYAML has it. Only the columns of syntax errors may differ a little."""
    expected = [(finding.code, finding.what) for finding in check(case).all]
    monkeypatch.setattr(yaml_parser, "_LOADER", yaml.SafeLoader)
    assert [(finding.code, finding.what) for finding in check(case).all] == expected


def test_paths_are_written_as_people_write_them() -> None:
    """Keys with dots or slashes stand in brackets."""
    assert format_path(("nodes", 2, "labels", "example.com/team")) == 'nodes[2].labels["example.com/team"]'
    assert format_path(()) == ""


@pytest.mark.parametrize("seed", range(200))
def test_no_damage_to_a_file_makes_the_check_fail(tmp_path: Path, seed: int) -> None:
    """Whatever a file holds, the answer is findings, never an exception."""
    text = fuzzing.mutate_text(random.Random(seed), PROD.read_text(encoding="utf-8"))  # noqa: S311  no secrets
    file = tmp_path / "damaged.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    for finding in check(file).all:
        assert finding.where.startswith(str(file))
        assert finding.what
        assert finding.fix
