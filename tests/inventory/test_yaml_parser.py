"""YAML becomes a document that knows where everything stands; nothing in a file can make the parser fail."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from gpu_provision.inventory import check, yaml_parser
from gpu_provision.inventory.document import Document, Source, format_path

HERE = Path(__file__).parent
PROD = HERE.parents[1] / "inventories" / "prod.yaml"


def document(text: str) -> Document:
    """Return the document of a text."""
    found, findings = yaml_parser.parse(Source("stack.yaml", Path("/stack.yaml"), text, ""))
    assert not findings
    return found


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


def test_scalars_keep_their_text() -> None:
    """Evidence shows what the user wrote, not what YAML made of it."""
    item = document("release: 26.70").item(("release",))
    assert item
    assert (item.value, item.raw) == (26.7, "26.70")


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
    """A date, for one, is never wanted."""
    assert document(f"key: {text}").data == {"key": value}


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
    chance = random.Random(seed)  # noqa: S311  reproducible damage, no secrets
    text = PROD.read_text(encoding="utf-8")
    for _ in range(chance.randint(1, 6)):
        text = chance.choice(DAMAGE)(text, chance)
    file = tmp_path / "damaged.yaml"
    file.write_text(text, encoding="utf-8")
    for finding in check(file).all:
        assert finding.where.startswith(str(file))
        assert finding.what
        assert finding.fix


def _without_a_piece(text: str, chance: random.Random) -> str:
    start = chance.randrange(len(text))
    return text[:start] + text[start + chance.randint(1, 40) :]


def _with_a_character(text: str, chance: random.Random) -> str:
    start = chance.randrange(len(text))
    return text[:start] + chance.choice("{}[]:,-&*!|>'\"%@`#?\t\n 0") + text[start:]


def _without_a_line(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[: (gone := chance.randrange(len(lines)))] + lines[gone + 1 :])


def _with_another_value(text: str, chance: random.Random) -> str:
    lines = [line for line in text.splitlines() if ": " in line]
    line = chance.choice(lines or [text])
    value = chance.choice(["[]", "{}", "~", "yes", "-1", "1.5", "{a: 1}", "[x]", "''", "*a", "022", ".nan"])
    return text.replace(line, f"{line.partition(': ')[0]}: {value}")


def _doubled(text: str, chance: random.Random) -> str:
    start = chance.randrange(len(text))
    return text + text[start : start + 300]


DAMAGE = (_without_a_piece, _with_a_character, _without_a_line, _with_another_value, _doubled)
