"""An inventory of an earlier time on the machines of today."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_provision.inventory import load
from gpu_provision.inventory.again import Again, again, as_then
from gpu_provision.inventory.hiding import hidden
from gpu_provision.inventory.source import Unreadable
from gpu_provision.model.inventory import Inventory

THEN = """\
name: x
cluster: {context: old}
release: "25.10.1"
driver: {env: {NGC_API_KEY: nvapi-12345}}
ssh: {user: old}
pools:
  t4: {gpu: {model: T4, count: 1}, labels: {example.com/tier: then}}
nodes:
  - {name: a, pool: t4, address: 10.0.0.1, labels: {example.com/rack: r1}}
  - {name: b, pool: t4}
"""
NOW = """\
name: x
cluster: {context: new}
release: "26.7.0"
driver: {env: {NGC_API_KEY: nvapi-67890}}
ssh: {user: new}
pools:
  t4: {gpu: {model: T4, count: 1}}
  h100: {gpu: {model: H100, count: 8}, labels: {example.com/tier: now}}
nodes:
  - {name: c, pool: h100}
  - {name: a, pool: t4, address: 10.0.0.9}
"""


def _loaded(folder: Path, text: str) -> Inventory:
    path = folder / "now.yaml"
    path.write_text(text)
    return load(path)


def test_settings_are_of_then_and_machines_of_now(tmp_path: Path) -> None:
    now = _loaded(tmp_path, NOW)
    found = again(hidden(THEN), now, name="run 3")
    then = found.inventory
    assert then
    assert (then.release, then.pools["t4"].labels) == ("25.10.1", {"example.com/tier": "then"})
    assert (then.cluster, then.specs.driver.env) == (now.cluster, {"NGC_API_KEY": "nvapi-67890"})
    assert [node.name for node in then.nodes] == ["c", "a"]
    assert then.pools["h100"].labels == {"example.com/tier": "now"}, "a pool that came with its nodes"
    node = then.nodes[1]
    assert (node.address, node.ssh.user, node.labels) == ("10.0.0.9", "new", {"example.com/rack": "r1"})
    assert (found.joined, found.left) == (("c",), ("b",))


def test_with_the_same_machines_the_text_is_that_of_then(tmp_path: Path) -> None:
    """Comments included, so that the next record and its diff are about what changed."""
    then = "# as it was\n" + NOW.replace("26.7.0", "25.10.1")
    found = again(then, _loaded(tmp_path, NOW), name="run 3")
    assert found.inventory
    assert (found.inventory.text, found.joined, found.left) == (then, (), ())


def test_a_pool_without_nodes_goes_and_one_with_a_selector_stays(tmp_path: Path) -> None:
    pools = yaml.safe_load(THEN)["pools"] | {
        "old": {"gpu": {"model": "T4", "count": 1}},
        "picked": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"pick": "me"}},
    }
    then = yaml.safe_dump(yaml.safe_load(THEN) | {"pools": pools})
    found = again(then, _loaded(tmp_path, NOW), name="run 3").inventory
    assert found
    assert set(found.pools) == {"t4", "h100", "picked"}


def test_secrets_that_nobody_has_are_named(tmp_path: Path) -> None:
    now = _loaded(tmp_path, NOW.replace("NGC_API_KEY: nvapi-67890", "A: b"))
    found = again(hidden(THEN), now, name="run 3")
    assert (found.inventory, found.missing) == (None, ("driver.env.NGC_API_KEY",))
    assert as_then(hidden(THEN), now, name="run 3"), "it can still be compared"


def test_what_is_not_valid_today_is_told_as_the_loader_tells_it(tmp_path: Path) -> None:
    now = _loaded(tmp_path, NOW)
    found = again(THEN.replace("driver:", "drivers:"), now, name="run 3")
    assert found.inventory is None
    assert found.findings[0].where.startswith("run 3:")
    assert as_then(THEN.replace("driver:", "drivers:"), now, name="run 3") is None


@pytest.mark.parametrize("text", ["", "[]", "{", "- a", "a: [*nobody]"])
def test_what_is_no_inventory_is_unreadable(tmp_path: Path, text: str) -> None:
    now = _loaded(tmp_path, NOW)
    with pytest.raises(Unreadable):
        again(text, now, name="run 3")
    assert as_then(text, now, name="run 3") is None


@pytest.mark.parametrize("text", ["nodes: {}", "nodes: [1, {}]", "name: x\npools: [1]"])
def test_nonsense_raises_nothing(tmp_path: Path, text: str) -> None:
    """Whoever may write ConfigMaps may have written this one."""
    assert isinstance(again(text, _loaded(tmp_path, NOW), name="run 3"), Again)


def test_a_record_has_no_file_read_that_the_inventory_of_now_does_not_read(tmp_path: Path) -> None:
    """Whoever may edit records would have files of this machine copied into pods."""
    (tmp_path / "own").write_text("of the inventory")
    (tmp_path / "other").write_text("of the machine")
    reference = "{env: {A: {file: own}, B: {file: %s}}}"
    now = _loaded(tmp_path, NOW.replace("{env: {NGC_API_KEY: nvapi-67890}}", reference % "own"))
    found = as_then(now.text.replace("B: {file: own}", "B: {file: other}"), now, name="run 3")
    assert found
    assert found.specs.driver.env == {"A": "of the inventory", "B": "file other"}
