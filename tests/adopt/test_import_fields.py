"""Each field of the GPU Operator, set once, is carried over to the manifests, or named with its place and reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.adopt import reference
from gpu_provision.adopt.inventory import Draft, derive_inventory
from gpu_provision.adopt.reference import DRIVER, POLICY
from gpu_provision.adopt.settings import put_value, value_at
from gpu_provision.adopt.sources import read_files
from gpu_provision.api.options import render
from gpu_provision.inventory import load
from gpu_provision.model.openshift import OpenShiftFacts
from tests.adopt.builders import operator_install
from tests.data_file import document
from tools.parity import FieldCoverage, status_of

DATA: dict[str, dict[str, Any]] = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
KINDS = {POLICY: "nvidia.com/v1", DRIVER: "nvidia.com/v1alpha1"}
FIELDS = [(kind, field) for kind in KINDS for field in reference.field_names(kind) if "[]" not in field]


def value_of(kind: str, field: str) -> Any:
    same = field if kind == POLICY else reference.policy_field(field)
    steps = same.split(".")
    names = (".".join(steps[start:]) for start in range(len(steps)))
    found = next(DATA["values"][name] for name in names if name in DATA["values"])
    if found is True and reference.default_of(reference.setting_of(same)) is True:
        return False
    return yaml.safe_load(yaml.safe_dump(found).replace("FIELD", field.replace(".", "-").lower()))


def companions_of(kind: str, field: str) -> dict[str, Any]:
    """Return other fields without which a field has no effect."""
    same = field if kind == POLICY else reference.policy_field(field)
    found: dict[str, Any] = {}
    for name in reference.prefixes(same):
        found |= DATA["with"].get(name, {})
    section, _, part = same.rpartition(".")
    if kind == POLICY and part in reference.IMAGE[:2]:  # an image alone is another thing
        found[f"{section}.version"] = value_of(kind, f"{section}.version")
    if gate := reference.row_of(POLICY, same).only_with:
        found[gate] = True
    return found if kind == POLICY else {"image": "driver"} | {_of_driver(name): each for name, each in found.items()}


def _of_driver(field: str) -> str:
    return field.removeprefix("driver.")


def derived(folder: Path, kind: str, fields: Mapping[str, Any]) -> Draft:
    """Return what becomes of a resource with these fields, on a cluster with a node."""
    spec: dict[str, Any] = {}
    for field, value in fields.items():
        put_value(spec, tuple(field.split(".")), value)
    file = folder / "resource.yaml"
    resource = {"apiVersion": KINDS[kind], "kind": kind, "metadata": {"name": "any"}, "spec": spec}
    file.write_text(yaml.safe_dump(resource), encoding="utf-8")
    source, _ = read_files([str(file)])
    install = operator_install()
    if "platform.openshift" in fields:  # no field of a resource: the cluster tells it
        install = replace(install, facts=replace(install.facts, openshift=OpenShiftFacts()))
    return derive_inventory(source, name="gpu", cluster={}, release="26.7.0", install=install)


@cache
def rendered(text: str, folder: Path) -> str:
    file = folder / "gpu.yaml"
    file.write_text(text, encoding="utf-8")
    return str(render(load(file)))


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_is_carried_over_or_named(tmp_path: Path, kind: str, field: str) -> None:
    """With an effect on the manifests, and the key of docs/parity.md; else with its place and the reason."""
    others, value = companions_of(kind, field), value_of(kind, field)
    draft, status = derived(tmp_path, kind, others | {field: value}), status_of(kind, field)
    named = [each for each in (*draft.unsupported, *draft.refused) if f"spec.{field}" in each.where]
    row = reference.driver_row(field) if kind == DRIVER else reference.row_of(POLICY, field)
    if field in DATA["elsewhere"] or field in DATA["on_by_default"]:
        return
    if status.key:
        assert named == []
        others = {} if field in DATA["not_without"] else {name: each for name, each in others.items() if name != field}
        check_carried(tmp_path, draft, derived(tmp_path, kind, others), status, value)
    elif not row.quiet and field.rpartition(".")[2] not in reference.IMAGE:
        (finding,) = named
        assert finding.where.startswith(f"{tmp_path}/resource.yaml:")
        assert row.reason in finding.what


def check_carried(folder: Path, draft: Draft, without: Draft, status: FieldCoverage, value: Any) -> None:
    """Assert that a key has the value, and that manifests have it, too."""
    key = status.key.removeprefix(reference.POOL)
    expected = {entry["name"]: entry["value"] for entry in value} if key.endswith(".env") else value
    assert str(value_at(draft.data, key)) == str(expected)
    if not any(name in DATA["not_rendered"] for name in reference.prefixes(status.field)):
        manifests, token = rendered(draft.text, folder), status.field.replace(".", "-").lower()
        assert manifests != rendered(without.text, folder)
        assert token in manifests or token not in str(value)
