"""An import of the chart's values, rendered, against what the GPU Operator makes of them: field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
from tests.data_file import document

Fields = Mapping[str, Any]
CASES: list[dict[str, Any]] = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
FACTS: dict[str, dict[str, Any]] = document(Path(__file__).with_name("operands-26.7.0.yaml").read_text("utf-8"))
CHART = Path(__file__).with_name("chart-values-26.7.0.yaml")
DRIVER = "nvidia-driver-daemonset"
ALIKE = ("securityContext", "image", "imagePullPolicy", "resources", "ports")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


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


def facts_of_daemon_set(manifest: dict[str, Any], manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the same facts of a DaemonSet that this project renders, among these manifests."""
    spec = manifest["spec"]
    pod = spec["template"]["spec"]
    metadata = spec["template"]["metadata"]
    return {key: value for key, value in pod.items() if key != "imagePullSecrets"} | {
        "labels": manifest["metadata"]["labels"],
        "selector": spec["selector"]["matchLabels"],
        "podLabels": metadata["labels"],
        "podAnnotations": metadata.get("annotations"),
        "updateStrategy": spec.get("updateStrategy"),
        "initContainers": {each["name"]: facts_of_container(each) for each in pod.get("initContainers", ())},
        "containers": {each["name"]: facts_of_container(each) for each in pod["containers"]},
        "volumes": {each["name"]: volume(each) for each in pod.get("volumes", ())},
        "rules": {kind: rules_of(pod["serviceAccountName"], kind, manifests) for kind in ("Role", "ClusterRole")},
    }


def rules_of(account: str, kind: str, manifests: list[dict[str, Any]]) -> dict[str, str]:
    """Return the verbs of an account by resource, from the roles that are bound to it."""
    bindings = [each for each in manifests if each["kind"] == f"{kind}Binding"]
    names = {each["roleRef"]["name"] for each in bindings if account in {who["name"] for who in each["subjects"]}}
    verbs: dict[str, set[str]] = {}
    for role in (each for each in manifests if each["kind"] == kind and each["metadata"]["name"] in names):
        for rule in role["rules"]:
            for group, resource in product(rule["apiGroups"], rule["resources"]):
                key = " ".join((f"{group}/{resource}".lstrip("/"), *rule.get("resourceNames", ())))
                verbs.setdefault(key, set()).update(rule["verbs"])
    return {key: " ".join(sorted(each)) for key, each in verbs.items()}


def facts_of_container(container: dict[str, Any]) -> dict[str, Any]:
    probes = {
        name: {key: program(value) if key == "exec" else value for key, value in container.get(name, {}).items()}
        for name in PROBES
    }
    stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
    names = {"name": "volume", "mountPropagation": "propagation", "readOnly": "readOnly", "subPath": "subPath"}
    return {key: container.get(key) for key in ALIKE} | {
        **probes,
        "program": program(container),
        "preStop": program(stop),
        "env": {each["name"]: value_of(each) for each in container.get("env", ())},
        "mounts": {
            mount["mountPath"]: {names[key]: value for key, value in mount.items() if key in names}
            for mount in container.get("volumeMounts", ())
        },
    }


def program(container: dict[str, Any]) -> str:
    """Return what a container or a probe runs; of a script the file that it waits for, or the program it becomes."""
    words = [*container.get("command", ()), *container.get("args", ())]
    text: str = words[2] if words[:2] == ["sh", "-c"] else " ".join(words)
    if waits := re.match(r"until \[ -f (\S+) \]; do [^;]*; sleep 5; done$", text):
        return f"wait for {waits[1]}"
    becomes = re.search(r'^exec (.*) "\$@"$', text, re.MULTILINE)
    return becomes[1] if becomes else text


def value_of(variable: dict[str, Any]) -> str:
    field = variable.get("valueFrom", {}).get("fieldRef")
    return f"fieldRef:{field['fieldPath']}" if field else variable.get("value", "")


def volume(source: dict[str, Any]) -> dict[str, Any]:
    (kind,) = source.keys() - {"name"}
    content = source[kind]
    if kind not in {"hostPath", "configMap"}:
        return {kind: content}
    place = content["path" if kind == "hostPath" else "name"]
    return {kind: place} | {key: value for key, value in content.items() if key not in {"path", "name"}}


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each field that is not the same; an empty one is an absent one."""
    empty: tuple[Any, ...] = (None, False, "", {}, [])
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in {**theirs, **ours}:
            yield from differences(theirs.get(key), ours.get(key), f"{path} {key}".lstrip())
    elif theirs != ours and not (theirs in empty and ours in empty):
        yield path


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
        each["metadata"]["name"].replace(f"{DRIVER}-ubuntu24.04", DRIVER): facts_of_daemon_set(each, manifests)
        for each in manifests
        if each["kind"] == "DaemonSet"
    }
    assert ours.keys() & FACTS.keys() == FACTS.keys() - {*case["absent"]}
    found = {
        f"{name} {path}"
        for name in FACTS.keys() - {*case["absent"]}
        for path in differences(facts_of(FACTS[name], case["conditions"]), ours[name])
    }
    patterns = [pattern for patterns in case["differences"].values() for pattern in patterns]
    assert sorted(path for path in found if not any(fnmatchcase(path, pattern) for pattern in patterns)) == []
    assert [pattern for pattern in patterns if not any(fnmatchcase(path, pattern) for path in found)] == []
