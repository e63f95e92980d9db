"""No record shows a secret, and all else in it is as it was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.history import restore as module
from gpu_provision.history.restore import (
    VERSIONS,
    RestoredInventory,
    declares_same,
    redact,
    replace_values,
    restore,
    restore_for_comparison,
    unredact,
)
from gpu_provision.inventory import load
from gpu_provision.inventory.document import Source, SourceError
from gpu_provision.inventory.json_schema import ANY, resolve_ref, schema
from gpu_provision.inventory.loader import validate_source
from gpu_provision.inventory.redaction import HIDDEN
from gpu_provision.inventory.resolve import merge
from gpu_provision.model.history import OF_RESOURCE, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator.stack import inventory_of
from tests import data_file
from tests.documents import CHECKOUT
from tests.inventory.planted import VALID, plant_strings
from tests.operator.conftest import stored_stack

DATA = Path(__file__).parent / "data"
TEXT = (DATA / "secrets.yaml").read_text()
SECRETS = ["hunter2", "pw1", "nvapi", "ghp-0", "lic-", "1234", "p@ss", "pw2", "pw4", "abc123", "pw3", "s0", "s1"]


def test_secrets_are_hidden_wherever_they_stand() -> None:
    """What the schema marks, in addresses, in arguments, in comments, and by an alias."""
    shown = redact(TEXT)
    told = [*SECRETS, "first line", "second line", "a # b", "s # 2", "yes", "the pool"]
    assert [secret for secret in told if secret in shown] == []


def test_names_alone_make_no_value_visible() -> None:
    """Each variable is secret but those that the schema exempts, whatever it is called."""
    told = yaml.safe_load(redact("name: x\ndriver: {env: {GIT_PAT: a, LICENSE: b, PLAIN: c, RUNTIME: d, E: ''}}"))
    shown = {"GIT_PAT": HIDDEN, "LICENSE": HIDDEN, "PLAIN": HIDDEN, "RUNTIME": "d", "E": ""}
    assert told["driver"]["env"] == shown


def test_all_else_is_as_it_was() -> None:
    """Comments go; every other line stays as it is written, references among them."""
    told = [line for line in redact(TEXT).splitlines() if "not shown" not in line]
    assert [line for line in TEXT.splitlines() if line in told] == [line for line in told if line != "name: x"]
    assert '    CONTAINERD_CONFIG: "/etc/containerd/config.toml"' in told
    assert "    FROM_FILE: {file: secrets/pat}" in told
    assert "    FROM_CALLER: {env: CALLERS_PAT}" in told
    assert "    FROM_CLUSTER: {secret: {name: git, key: pat}}" in told
    assert yaml.safe_load(redact(TEXT)).keys() == yaml.safe_load(TEXT).keys()
    prod = (CHECKOUT / "inventories" / "prod.yaml").read_text()
    assert yaml.safe_load(redact(prod)) == yaml.safe_load(prod), "comments alone may tell"
    assert "#" not in redact(prod)


def test_secrets_come_back_from_a_file_that_has_them() -> None:
    """Without one every value stays hidden."""
    assert yaml.safe_load(unredact(redact(TEXT), TEXT)) == yaml.safe_load(TEXT)
    assert unredact(redact(TEXT), "") == unredact(redact(TEXT), "name: x") == redact(TEXT)


@pytest.mark.parametrize(("old", "new", "hidden_ones"), data_file.document((DATA / "changed.yaml").read_text()))
def test_a_secret_is_that_of_the_same_place_and_address(old: str, new: str, hidden_ones: int) -> None:
    """A password that was changed since is the one to use."""
    back = yaml.safe_load(unredact(redact(TEXT), TEXT.replace(old, new)))
    assert json.dumps(back).count("(not shown)") == hidden_ones


def test_a_value_is_replaced_where_it_stands() -> None:
    """By its path; comments and anchors stay."""
    found = replace_values(TEXT, {("driver", "env", "NGC_API_KEY"): 'a "b"', ("name",): "y", ("none",): "z"})
    assert found == TEXT.replace("name: x ", 'name: "y" ').replace("&key nvapi-12345 ", '&key "a \\"b\\"" ', 1)


DIGEST = "sha256:" + "0" * 64
THEN, NOW = ((DATA / name).read_text() for name in ("then.yaml", "now.yaml"))


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
    found = restore(redact(THEN), now, name="run 3")
    expected = NOW.replace("26.7.0", "25.10.1").replace("595.91.07", "580.95.05").replace("580.126.20", "580.82.07")
    assert found.inventory
    assert found.inventory.text == expected
    assert _bare(found.inventory) == _read(expected, now)
    assert found.kept == ("cluster.context", "ssh.user", "pools", "nodes"), "and no secret, which was renewed"


def test_without_other_versions_the_text_is_that_of_now(tmp_path: Path) -> None:
    now = _loaded(tmp_path, NOW)
    found = restore(f"# other\n{NOW}", now, name="run 3")
    assert (found.inventory and found.inventory.text, found.kept) == (NOW, ())


POOL = "name: x\ncluster: {context: c}\npools:\n  t4: {gpu: {model: T4, count: 1}%s}\n"


@pytest.mark.parametrize("case", data_file.document((DATA / "versions.yaml").read_text()), ids=itemgetter("name"))
def test_a_version_comes_and_goes_with_its_key(tmp_path: Path, case: dict[str, str]) -> None:
    """A pool whose driver is left empty has no driver of its own."""
    for one, other in ((case["then"], case["now"]), (case["now"], case["then"])):
        current = _loaded(tmp_path, other)
        assert _bare(restore(one, current, name="run 3").inventory) == _read(one, current)


def test_a_record_without_a_release_means_that_of_its_time(tmp_path: Path) -> None:
    now = _loaded(tmp_path, POOL % "")
    same = restore(POOL % "", now, name="run 3", release="26.7.0").inventory
    assert (same and same.text, _bare(same)) == (now.text, _bare(now))
    found = restore(POOL % "", now, name="run 3", release="25.10.1").inventory
    assert (found and found.release) == "25.10.1"
    assert restore(POOL % "", now, name="run 3", release="evil").unknown == {"release": "'evil'"}


def test_every_version_of_the_schema_is_in_the_table() -> None:
    of_formats = {("device_plugin", "config", "data", ANY, "version"), ("mig_manager", "config", "data", "version")}
    named = {path for path in _paths(schema()) if path[-1] in {"version", "release"}} - of_formats
    assert named == VERSIONS.keys()


def _paths(part: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    found = resolve_ref(part)
    yield from [path] if path else []
    inner = found.get("items") or found.get("additionalProperties")
    below = {**found.get("properties", {}), ANY: inner if isinstance(inner, dict) else {}}
    for key, each in below.items():
        if key != ANY or "$ref" in each:
            yield from _paths(each, (*path, key))


@pytest.mark.parametrize("section", [*plant_strings(), ""], ids=lambda section: section or "all")
def test_a_planted_record_gives_nothing_but_versions(tmp_path: Path, section: str) -> None:
    """Every setting of a section has a hostile value, or every one that there is."""
    now, versions = _loaded(tmp_path, NOW), {"release": "25.10.1", "driver": {"version": "580.95.05"}}
    versions["pools"] = {"t4": {"driver": {"version": "580.82.07"}}}
    evil = {key: value for key, value in plant_strings().items() if section in {"", key}}
    found = restore(json.dumps(merge(merge(yaml.safe_load(NOW), evil), versions)), now, name="run 3")
    expected = NOW.replace("26.7.0", "25.10.1").replace("595.91.07", "580.95.05").replace("580.126.20", "580.82.07")
    assert found.inventory
    assert found.inventory.text == expected
    assert _bare(found.inventory) == _read(expected, now)
    assert "evil" not in f"{found.kept}{found.findings}"
    assert any(path.startswith(section) for path in found.kept)


def test_a_planted_record_that_a_loader_accepts_is_no_better(tmp_path: Path) -> None:
    now = _loaded(tmp_path, NOW)
    found = restore(f'name: x\ncluster: {{}}\nrelease: "25.10.1"\n{VALID}', now, name="run 3")
    expected = yaml.safe_load(NOW) | {"release": "25.10.1"}
    del expected["driver"]["version"], expected["pools"]["t4"]["driver"]  # the record names none
    assert _bare(found.inventory) == _read(yaml.safe_dump(expected), now)
    assert {"registry", "driver.repository", "driver.env", "host_prerequisites.sysctls", "pools"} < set(found.kept)


@pytest.mark.parametrize("value", data_file.document((DATA / "refused.yaml").read_text()), ids=ascii)
def test_a_version_that_nothing_of_now_names_is_refused(tmp_path: Path, value: object) -> None:
    """Wherever it stands. The finding shows it without control characters."""
    now = _loaded(tmp_path, NOW)
    for path in VERSIONS:
        planted = yaml.safe_load(NOW)
        module._set(planted, tuple("t4" if step == ANY else step for step in path), value)
        found = restore(json.dumps(planted), now, name="run 3")
        assert found.inventory is None
        assert found.unknown == {".".join(map(str, path)).replace(ANY, "t4"): ascii(value)}


def test_catalogue_and_present_inventory_name_known_versions(tmp_path: Path) -> None:
    """The inventory names a version for one software, wherever that stands; digests are no exception."""
    text = f"{NOW}toolkit: {{version: custom-1}}\nnfd: {{version: {DIGEST!r}}}\n"
    now = _loaded(tmp_path, text)
    for change in (
        {"toolkit": {"version": "custom-1"}, "nfd": {"version": DIGEST}},
        {"toolkit": {"version": "v1.18.1"}, "nfd": {"version": "v0.18.3"}, "release": "v25.10.1"},
        {"driver": {"version": "580.178.04"}},  # as pool h100 has it
    ):
        planted = yaml.safe_load(text) | change
        found = restore(yaml.safe_dump(planted), now, name="run 3")
        assert (found.unknown, found.inventory and found.inventory.release) == ({}, planted["release"].lstrip("v"))
    planted = yaml.safe_load(text) | {"validator": {"version": "custom-1"}, "dcgm": {"version": DIGEST}}
    found = restore(yaml.safe_dump(planted), now, name="run 3")
    assert found.unknown.keys() == {"validator.version", "dcgm.version"}


def test_an_unknown_version_is_reported(tmp_path: Path) -> None:
    """As the loader tells it."""
    now = _loaded(tmp_path, POOL.replace("T4", "B200") % "")
    found = restore('driver: {version: "535.104.12"}\n' + POOL % "", now, name="run 3")
    assert found.inventory is None
    assert found.findings[0].where.startswith("run 3:")


def test_a_comparison_reads_no_file_that_a_record_names(tmp_path: Path) -> None:
    """Neither does it need all secrets of then."""
    now = _loaded(tmp_path, NOW.replace("NGC_API_KEY: nvapi-67890", "A: b"))
    then = f"{redact(THEN)}host_prerequisites: {{ca_certificates: [none.pem], proxy: {{credentials_file: none}}}}\n"
    assert restore_for_comparison(then, now, name="run 3")
    assert restore_for_comparison(THEN.replace("driver:", "drivers:"), now, name="run 3") is None


@pytest.mark.parametrize("text", ["", "[]", "{", "- a", "a: [*unknown]"])
def test_what_is_no_inventory_is_unreadable(tmp_path: Path, text: str) -> None:
    now = _loaded(tmp_path, NOW)
    with pytest.raises(SourceError):
        restore(text, now, name="run 3")
    assert restore_for_comparison(text, now, name="run 3") is None


@pytest.mark.parametrize("text", ["nodes: {}", "nodes: [1, {}]", "name: x\npools: [1]", "driver: [1]\npools: {t4: 1}"])
def test_nonsense_raises_nothing(tmp_path: Path, text: str) -> None:
    now = _loaded(tmp_path, NOW)
    for of_cluster in (False, True):
        assert isinstance(restore(text, now, name="run 3", of_cluster=of_cluster), RestoredInventory)
    restore_for_comparison(text, now, name="run 3")


def test_a_record_names_no_file_to_read(tmp_path: Path) -> None:
    """The right to edit records is no right to copy files of this machine into pods."""
    (tmp_path / "own").write_text("of the inventory")
    (tmp_path / "other").write_text("of the machine")
    reference = "{A: {file: own}, B: {file: own}}"
    now = _loaded(tmp_path, NOW.replace("{NGC_API_KEY: nvapi-67890}", reference))
    found = restore_for_comparison(now.text.replace("B: {file: own}", "B: {file: other}"), now, name="run 3")
    assert found
    assert found.specs.driver.env == {"A": "of the inventory", "B": "file other"}


FILES = (CHECKOUT / "inventories/sandbox.yaml", CHECKOUT / "inventories/prod.yaml")
PRESENT = load(FILES[0])
RUN = Record(id="a", number=1, text=redact(PRESENT.text))
HOSTS = "host_prerequisites: {persistence_mode: false, sysctls: {vm.max_map_count: 262144}}\n"
DRIVER = 'driver: {version: "580.126.20"}\n'


def of_stack(text: str) -> Record:
    return Record(id="b", number=2, text=redact(text), source=OF_RESOURCE)


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def stack(request: pytest.FixtureRequest) -> tuple[Record, Record, str]:
    """A run of a file, one of its stack as an API server stores it, and the file's text."""
    inventory, _ = inventory_of(stored_stack(request.param))
    assert inventory
    assert inventory.is_of_resource
    text = request.param.read_text()
    return replace(RUN, text=redact(text)), of_stack(inventory.text), text


def test_a_stack_means_what_its_file_does(stack: tuple[Record, Record, str]) -> None:
    """Defaults that a server writes, and hosts that a stack does not have, are no difference."""
    by_file, by_stack, text = stack
    now = replace(PRESENT, text=text)
    assert by_file.text != by_stack.text
    changed = replace(RUN, text=PRESENT.text + DRIVER)
    for one, other in ((by_file, by_stack), (by_stack, by_file)):
        assert declares_same(one, other, now)
        assert not declares_same(changed, other, PRESENT)
    assert declares_same(RUN, replace(RUN, text=f"# of mine\n{PRESENT.text}{HOSTS}"), PRESENT), "hosts and comments"


@pytest.mark.parametrize("text", ["{", "name: x\nweather: fine\n", ""])
def test_what_cannot_be_read_is_like_itself_alone(text: str) -> None:
    assert not declares_same(RUN, replace(RUN, text=text), PRESENT)
    assert not declares_same(replace(RUN, text=text, source=OF_RESOURCE), RUN, PRESENT)
    assert declares_same(replace(RUN, text=text, source=OF_RESOURCE), replace(RUN, text=text), PRESENT)


def test_hosts_that_a_stack_does_not_name_are_no_difference() -> None:
    """The record of a stack has the API server's defaults, and says nothing of hosts."""
    then, _ = inventory_of(stored_stack(FILES[1]))
    assert then
    found = restore(then.text, load(FILES[1]), name="run 2", of_cluster=True)
    assert (found.inventory and found.inventory.text, found.kept) == (FILES[1].read_text(), ())
