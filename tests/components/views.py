"""Manifests in the shape of the facts about the GPU Operator, and the differences between two such tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Manifest = dict[str, Any]
_ALIKE = ("securityContext", "image", "imagePullPolicy", "resources", "ports")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def operand(daemon_set: Manifest) -> Manifest:
    """Return a DaemonSet in the shape of operands-26.7.0.yaml."""
    spec = daemon_set["spec"]
    metadata, pod = spec["template"]["metadata"], spec["template"]["spec"]
    return {key: value for key, value in pod.items() if key != "imagePullSecrets"} | {
        "labels": daemon_set["metadata"]["labels"],
        "selector": spec["selector"]["matchLabels"],
        "podLabels": metadata["labels"],
        "podAnnotations": metadata.get("annotations"),
        "updateStrategy": spec.get("updateStrategy"),
        "initContainers": {each["name"]: container(each) for each in pod.get("initContainers", ())},
        "containers": {each["name"]: container(each) for each in pod["containers"]},
        "volumes": {each["name"]: _volume(each) for each in pod.get("volumes", ())},
    }


def container(item: Manifest) -> Manifest:
    """Return a container; of a script only the file that it waits for."""
    words = [*item.get("command", ()), *item.get("args", ())]
    script = words[2] if words[:2] == ["sh", "-c"] else " ".join(words)
    pre_stop = item.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "", ""])[2]
    waits = "until" in script
    return {key: item.get(key) for key in _ALIKE} | {
        **{name: {key: value for key, value in item.get(name, {}).items() if key != "exec"} for name in _PROBES},
        "env": {entry["name"]: _value(entry) for entry in item.get("env", ())},
        "mounts": {entry["mountPath"]: _mount(entry) for entry in item.get("volumeMounts", ())},
        "pre_stop_removes": pre_stop.removeprefix("rm -f ").split(),
        "runs": "" if waits or "sleep" in script else script,
        "waits_for": next((word for word in script.split() if word.startswith("/")), "") if waits else "",
    }


def _value(entry: Manifest) -> str:
    field = entry.get("valueFrom", {}).get("fieldRef")
    return f"fieldRef:{field['fieldPath']}" if field else str(entry.get("value", ""))


def _mount(entry: Manifest) -> Manifest:
    renamed = {"name": "volume", "mountPropagation": "propagation"}
    return {renamed.get(key, key): value for key, value in entry.items() if key != "mountPath"}


def _volume(item: Manifest) -> Manifest:
    (kind,) = item.keys() - {"name"}
    if kind not in {"hostPath", "configMap"}:
        return {kind: item[kind]}
    place = "path" if kind == "hostPath" else "name"
    return {kind: item[kind][place]} | {key: value for key, value in item[kind].items() if key != place}


def rules(manifests: Sequence[Manifest], kind: str) -> Manifest:
    return {item["metadata"]["name"]: item["rules"] for item in of_kind(manifests, kind)}


def service(manifests: Sequence[Manifest]) -> Manifest:
    """Return the Service with its name, labels and annotations beside its spec; empty if there is none."""
    for item in of_kind(manifests, "Service"):
        parts = {key: item["metadata"].get(key) for key in ("name", "labels", "annotations")}
        return {**parts, **item["spec"]}
    return {}


def service_monitor(manifests: Sequence[Manifest]) -> Manifest:
    """Return the ServiceMonitor with its name and labels beside its spec; empty if there is none."""
    for item in of_kind(manifests, "ServiceMonitor"):
        return {"name": item["metadata"]["name"], "labels": item["metadata"]["labels"], **item["spec"]}
    return {}


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each field that is not the same; a list is one field, and an empty one is an absent one."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in {**expected, **found}:
            yield from differences(expected.get(key), found.get(key), f"{path} {key}".lstrip())
    elif expected != found and not (_is_empty(expected) and _is_empty(found)):
        yield path


def _is_empty(value: Any) -> bool:
    return value is False or value in (None, "", {}, [])
