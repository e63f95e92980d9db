"""An import of the chart's values, rendered, against what the GPU Operator makes of them: field by field."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.adopt.inventory import derive_inventory
from gpu_provision.adopt.sources import read_files
from gpu_provision.api.options import render
from gpu_provision.inventory import load
from tests.adopt.builders import operator_install
from tests.components import views
from tests.data_file import document

Fields = Mapping[str, Any]
CASES: list[dict[str, Any]] = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
FACTS: dict[str, dict[str, Any]] = document(Path(__file__).with_name("operands-26.7.0.yaml").read_text("utf-8"))
CHART = Path(__file__).with_name("chart-values-26.7.0.yaml")
DRIVER = "nvidia-driver-daemonset"


def facts_of(operand: Fields, conditions: list[str]) -> dict[str, Any]:
    """Return the facts of an operand, without the containers whose condition does not hold."""
    return dict(operand) | {
        kind: {
            name: {key: value for key, value in container.items() if key != "only_if"}
            for name, container in operand.get(kind, {}).items()
            if container.get("only_if") in (None, *conditions)
        }
        for kind in ("initContainers", "containers")
    }


def rules_of(account: str, manifests: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the verbs of an account by resource, from the roles and cluster roles that are bound to it."""
    result = {}
    for kind in ("Role", "ClusterRole"):
        bindings = views.of_kind(manifests, f"{kind}Binding")
        names = {each["roleRef"]["name"] for each in bindings if account in {who["name"] for who in each["subjects"]}}
        verbs: dict[str, set[str]] = {}
        for role in (each for each in views.of_kind(manifests, kind) if each["metadata"]["name"] in names):
            for rule in role["rules"]:
                for group, resource in product(rule["apiGroups"], rule["resources"]):
                    key = " ".join((f"{group}/{resource}".lstrip("/"), *rule.get("resourceNames", ())))
                    verbs.setdefault(key, set()).update(rule["verbs"])
        result[kind] = {key: " ".join(sorted(each)) for key, each in verbs.items()}
    return result


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_an_import_renders_what_the_operator_makes(tmp_path: Path, case: dict[str, Any]) -> None:
    """Each difference is listed with its reason, and no other is."""
    file, values = tmp_path / "gpu.yaml", tmp_path / "values.yaml"
    values.write_text(CHART.read_text("utf-8") + "---\n" + case["values"], encoding="utf-8")
    source, _ = read_files([str(values)])
    draft = derive_inventory(source, name="gpu", cluster={}, release="26.7.0", install=operator_install())
    assert (*draft.unsupported, *draft.refused) == ()
    file.write_text(draft.text, encoding="utf-8")
    manifests = [*chain.from_iterable(render(load(file)).values())]
    ours = {
        each["metadata"]["name"].replace(f"{DRIVER}-ubuntu24.04", DRIVER): {
            **views.operand(each),
            "rules": rules_of(each["spec"]["template"]["spec"]["serviceAccountName"], manifests),
        }
        for each in manifests
        if each["kind"] == "DaemonSet"
    }
    assert ours.keys() & FACTS.keys() == FACTS.keys() - {*case["absent"]}
    found = {
        f"{name} {path}"
        for name in FACTS.keys() - {*case["absent"]}
        for path in views.differences(facts_of(FACTS[name], case["conditions"]), ours[name])
    }
    patterns = [pattern for patterns in case["differences"].values() for pattern in patterns]
    assert sorted(path for path in found if not any(fnmatchcase(path, pattern) for pattern in patterns)) == []
    assert [pattern for pattern in patterns if not any(fnmatchcase(path, pattern) for path in found)] == []
