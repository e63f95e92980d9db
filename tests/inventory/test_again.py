"""The versions of an earlier inventory on the inventory of now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.inventory import again as module
from gpu_provision.inventory import load
from gpu_provision.inventory.again import VERSIONS, Again, again, as_then
from gpu_provision.inventory.document import Source, SourceError
from gpu_provision.inventory.hiding import hidden
from gpu_provision.inventory.json_schema import ANY, resolved, schema
from gpu_provision.inventory.loader import validate_source
from gpu_provision.inventory.resolve import merge
from gpu_provision.model.inventory import Inventory
from tests.inventory.planted import VALID, hostile

DIGEST = "sha256:" + "0" * 64
THEN = """\
name: x
cluster: {context: old}
release: "25.10.1"
driver: {env: {NGC_API_KEY: nvapi-12345}, version: "580.95.05"}
ssh: {user: old}
pools:
  t4: {gpu: {model: T4, count: 1}, labels: {example.com/tier: then}, driver: {version: "580.82.07"}}
  gone: {gpu: {model: T4, count: 1}, node_selector: {pick: me}, driver: {version: "580.65.99"}}
nodes:
  - {name: a, pool: t4, address: 10.0.0.1, labels: {example.com/rack: r1}}
  - {name: b, pool: t4}
"""
NOW = """\
# of now
name: x
cluster: {context: new}
release: "26.7.0"  # the newest
driver: {env: {NGC_API_KEY: nvapi-67890}, version: "595.91.07"}
ssh: {user: new}
pools:
  t4: {gpu: {model: T4, count: 1}, driver: {version: "580.126.20"}}
  h100: {gpu: {model: H100, count: 8}, labels: {example.com/tier: now}, driver: {version: "580.178.04"}}
nodes:
  - {name: c, pool: h100}
  - {name: a, pool: t4, address: 10.0.0.9}
"""


def _loaded(folder: Path, text: str) -> Inventory:
    path = folder / "now.yaml"
    path.write_text(text)
    return load(path)


def _read(text: str, now: Inventory) -> Inventory | None:
    """Return the inventory of a text at the place of the present one, to compare."""
    found, _ = validate_source(Source(name="expected", path=Path(now.path), text=text, digest=""))
    return found and replace(found, text="", digest="", path=now.path)


def _bare(found: Inventory | None) -> Inventory | None:
    return found and replace(found, text="", digest="")


def test_versions_are_of_then_and_all_else_of_now(tmp_path: Path) -> None:
    """In the text of now, whose comments stay."""
    now = _loaded(tmp_path, NOW)
    found = again(hidden(THEN), now, name="run 3")
    expected = NOW.replace("26.7.0", "25.10.1").replace("595.91.07", "580.95.05").replace("580.126.20", "580.82.07")
    assert found.inventory
    assert found.inventory.text == expected
    assert _bare(found.inventory) == _read(expected, now)
    assert found.kept == ("cluster.context", "ssh.user", "pools", "nodes"), "and no secret, which was renewed"


def test_without_other_versions_the_text_is_that_of_now(tmp_path: Path) -> None:
    now = _loaded(tmp_path, NOW)
    found = again(f"# other\n{NOW}", now, name="run 3")
    assert (found.inventory and found.inventory.text, found.kept) == (NOW, ())


POOL = "name: x\ncluster: {context: c}\npools:\n  t4: {gpu: {model: T4, count: 1}%s}\n"


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ('driver: {version: "580.95.05"}\n' + POOL % "", POOL % ""),
        ("driver: {manager: {version: v0.9.0}}\n" + POOL % "", POOL % ', driver: {manager: {version: "v0.9.0"}}'),
        ('release: "25.10.1"\n' + POOL % "", "gfd: {version: &v v0.19.3}\ndevice_plugin: {version: *v}\n" + POOL % ""),
        ("gfd: {version: v0.20.0}\n" + POOL % "", "gfd: &v {version: v0.19.3}\ndevice_plugin: *v\n" + POOL % ""),
        (POOL % ', driver: {version: "580.95.05", manager: {version: v0.9.0}}', POOL % ""),
    ],
    ids=["the driver's", "to a pool", "the release's", "an alias's", "a pool's"],
)
def test_a_version_comes_and_goes_with_its_key(tmp_path: Path, then: str, now: str) -> None:
    """A pool whose driver is left empty has no driver of its own."""
    for one, other in ((then, now), (now, then)):
        current = _loaded(tmp_path, other)
        assert _bare(again(one, current, name="run 3").inventory) == _read(one, current)


def test_a_record_without_a_release_means_that_of_its_time(tmp_path: Path) -> None:
    now = _loaded(tmp_path, POOL % "")
    same = again(POOL % "", now, name="run 3", release="26.7.0").inventory
    assert (same and same.text, _bare(same)) == (now.text, _bare(now))
    found = again(POOL % "", now, name="run 3", release="25.10.1").inventory
    assert (found and found.release) == "25.10.1"
    assert again(POOL % "", now, name="run 3", release="evil").unknown == {"release": "'evil'"}


def test_every_version_of_the_schema_is_in_the_table() -> None:
    named = {path for path in _paths(schema()) if path[-1] in {"version", "release"}}
    assert named == VERSIONS.keys()


def _paths(part: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all settings of the schema."""
    found = resolved(part)
    yield from [path] if path else []
    below = {**found.get("properties", {}), ANY: found.get("items") or found.get("additionalProperties") or {}}
    for key, each in below.items():
        if key != ANY or "$ref" in each:
            yield from _paths(each, (*path, key))


@pytest.mark.parametrize("section", [*hostile(), ""], ids=lambda section: section or "all")
def test_a_planted_record_gives_nothing_but_versions(tmp_path: Path, section: str) -> None:
    """Every setting of a section has a hostile value, or every one that there is."""
    now, versions = _loaded(tmp_path, NOW), {"release": "25.10.1", "driver": {"version": "580.95.05"}}
    versions["pools"] = {"t4": {"driver": {"version": "580.82.07"}}}
    evil = {key: value for key, value in hostile().items() if section in {"", key}}
    found = again(json.dumps(merge(merge(yaml.safe_load(NOW), evil), versions)), now, name="run 3")
    expected = NOW.replace("26.7.0", "25.10.1").replace("595.91.07", "580.95.05").replace("580.126.20", "580.82.07")
    assert found.inventory
    assert found.inventory.text == expected
    assert _bare(found.inventory) == _read(expected, now)
    assert "evil" not in f"{found.kept}{found.findings}"
    assert any(path.startswith(section) for path in found.kept)


def test_a_planted_record_that_a_loader_accepts_is_no_better(tmp_path: Path) -> None:
    now = _loaded(tmp_path, NOW)
    found = again(f'name: x\ncluster: {{}}\nrelease: "25.10.1"\n{VALID}', now, name="run 3")
    expected = yaml.safe_load(NOW) | {"release": "25.10.1"}
    del expected["driver"]["version"], expected["pools"]["t4"]["driver"]  # the record names none
    assert _bare(found.inventory) == _read(yaml.safe_dump(expected), now)
    assert {"registry", "driver.repository", "driver.env", "host_prerequisites.sysctls", "pools"} < set(found.kept)


@pytest.mark.parametrize(
    "value",
    [
        "25.10.1\n",
        "25.10.1 ",
        "26.7.0;id",
        "26.7.0\x1b[2J",
        "v0.20.0\0",
        "",
        DIGEST,
        "1.0",
        25.1,
        True,
        [],
        ["v0.20.0"],
        {},
    ],
    ids=ascii,
)
def test_a_version_that_nothing_of_now_names_is_refused(tmp_path: Path, value: object) -> None:
    """Wherever it stands. The finding shows it without control characters."""
    now = _loaded(tmp_path, NOW)
    for path in VERSIONS:
        planted = yaml.safe_load(NOW)
        module._set(planted, tuple("t4" if step == ANY else step for step in path), value)
        found = again(json.dumps(planted), now, name="run 3")
        assert found.inventory is None
        assert found.unknown == {".".join(map(str, path)).replace(ANY, "t4"): ascii(value)}


def test_versions_of_the_catalogue_and_of_the_present_inventory_are_known(tmp_path: Path) -> None:
    """The inventory names a version for one software, wherever that stands; digests are no exception."""
    text = f"{NOW}toolkit: {{version: custom-1}}\nnfd: {{version: {DIGEST!r}}}\n"
    now = _loaded(tmp_path, text)
    for change in (
        {"toolkit": {"version": "custom-1"}, "nfd": {"version": DIGEST}},
        {"toolkit": {"version": "v1.18.1"}, "nfd": {"version": "v0.18.3"}, "release": "v25.10.1"},
        {"driver": {"version": "580.178.04"}},  # as pool h100 has it
    ):
        planted = yaml.safe_load(text) | change
        found = again(yaml.safe_dump(planted), now, name="run 3")
        assert (found.unknown, found.inventory and found.inventory.release) == ({}, planted["release"].lstrip("v"))
    planted = yaml.safe_load(text) | {"validator": {"version": "custom-1"}, "dcgm": {"version": DIGEST}}
    found = again(yaml.safe_dump(planted), now, name="run 3")
    assert found.unknown.keys() == {"validator.version", "dcgm.version"}


def test_what_does_not_fit_the_present_inventory_is_told(tmp_path: Path) -> None:
    """As the loader tells it."""
    now = _loaded(tmp_path, POOL.replace("T4", "B200") % "")
    found = again('driver: {version: "535.104.12"}\n' + POOL % "", now, name="run 3")
    assert found.inventory is None
    assert found.findings[0].where.startswith("run 3:")


def test_a_comparison_reads_no_file_that_a_record_names(tmp_path: Path) -> None:
    """Neither does it need all secrets of then."""
    now = _loaded(tmp_path, NOW.replace("NGC_API_KEY: nvapi-67890", "A: b"))
    then = f"{hidden(THEN)}host_prerequisites: {{ca_certificates: [none.pem], proxy: {{credentials_file: none}}}}\n"
    assert as_then(then, now, name="run 3")
    assert as_then(THEN.replace("driver:", "drivers:"), now, name="run 3") is None


@pytest.mark.parametrize("text", ["", "[]", "{", "- a", "a: [*nobody]"])
def test_what_is_no_inventory_is_unreadable(tmp_path: Path, text: str) -> None:
    now = _loaded(tmp_path, NOW)
    with pytest.raises(SourceError):
        again(text, now, name="run 3")
    assert as_then(text, now, name="run 3") is None


@pytest.mark.parametrize("text", ["nodes: {}", "nodes: [1, {}]", "name: x\npools: [1]", "driver: [1]\npools: {t4: 1}"])
def test_nonsense_raises_nothing(tmp_path: Path, text: str) -> None:
    now = _loaded(tmp_path, NOW)
    for of_cluster in (False, True):
        assert isinstance(again(text, now, name="run 3", of_cluster=of_cluster), Again)
    as_then(text, now, name="run 3")


def test_a_record_names_no_file_to_read(tmp_path: Path) -> None:
    """The right to edit records is no right to copy files of this machine into pods."""
    (tmp_path / "own").write_text("of the inventory")
    (tmp_path / "other").write_text("of the machine")
    reference = "{A: {file: own}, B: {file: own}}"
    now = _loaded(tmp_path, NOW.replace("{NGC_API_KEY: nvapi-67890}", reference))
    found = as_then(now.text.replace("B: {file: own}", "B: {file: other}"), now, name="run 3")
    assert found
    assert found.specs.driver.env == {"A": "of the inventory", "B": "file other"}
