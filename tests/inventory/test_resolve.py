"""What is not declared comes from the release, the inventory's shared settings and the model, in this order."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.inventory import load, schema
from gpu_provision.inventory.expectation import expected_of
from gpu_provision.inventory.json_schema import resolve_ref
from gpu_provision.inventory.sections import SPECS
from gpu_provision.model.hosts import Expectation
from gpu_provision.model.inventory import Inventory
from gpu_provision.releases import DEFAULT, names, release
from tests import data_file

CASES: dict[str, dict[str, Any]] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


def load_data(directory: Path, **data: Any) -> Inventory:
    """Return the inventory of a file that says this, besides what every file says."""
    basis = {
        "name": "stack",
        "cluster": {"context": "prod"},
        "pools": {"t4": {"gpu": {"model": "T4", "count": 1}}},
        "nodes": [{"name": "t4-1", "pool": "t4"}],
    }
    file = directory / "stack.yaml"
    file.write_text(yaml.safe_dump({**basis, **data}), encoding="utf-8")
    return load(file)


@pytest.mark.parametrize("case", CASES)
def test_an_inventory_means_what_the_case_says(tmp_path: Path, case: str) -> None:
    (tmp_path / "secret").write_text("me:pw\n")
    places = {"file": tmp_path, "above": tmp_path.parent, "home": Path.home()}
    inventory = load_data(tmp_path, **CASES[case]["inventory"])
    expected = expected_of(inventory, inventory.nodes[0])
    for path, value in CASES[case]["means"].items():
        result: Any = {"expected": expected} if path.startswith("expected") else inventory
        for step in path.split("."):
            result = result[step] if isinstance(result, dict) else getattr(result, step)
        result = list(result) if isinstance(result, tuple) else result
        assert result == (value.format(**places) if isinstance(value, str) else value), path
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(expected).items()}
    assert Expectation.from_data(plain) == expected, "as pyinfra's host data has it"


def test_the_least_inventory_has_every_default(tmp_path: Path) -> None:
    """The schema says what the defaults are; the loader agrees with it, key by key."""
    inventory = load_data(tmp_path)
    assert (inventory.release, inventory.cluster.namespace) == (DEFAULT, "gpu-operator-resources")
    for key in SPECS:
        spec, section = getattr(inventory.specs, key), resolve_ref(schema()["properties"][key])
        for name, part in section["properties"].items():
            if "default" in resolve_ref(part) and hasattr(spec, name):
                value = getattr(spec, name)
                assert (list(value) if isinstance(value, tuple) else value) == resolve_ref(part)["default"], (key, name)
    assert inventory.specs.mig_strategy == "single"
    assert not inventory.specs.dcgm.enabled


@pytest.mark.parametrize("name", names())
def test_images_come_from_the_release(tmp_path: Path, name: str) -> None:
    """Every release of the catalogue can be declared."""
    inventory = load_data(tmp_path, release=name)
    assert inventory.release == name
    for key in SPECS:
        assert getattr(inventory.specs, key).image == release(name).image(key)
    assert inventory.specs.driver.manager.image == release(name).image("driver_manager")


def test_the_file_is_named_by_path_and_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a run say which file it was, wherever the run was started."""
    load_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    inventory = load("stack.yaml")
    assert inventory.path == str(tmp_path / "stack.yaml")
    assert inventory.digest == hashlib.sha256((tmp_path / "stack.yaml").read_bytes()).hexdigest()
