"""Manifests in the shape of oracle.yaml, and the differences between two such tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Manifest = dict[str, Any]
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def operand(manifests: Sequence[Manifest], daemon_set: Manifest) -> Manifest:
    """Return an operand in the oracle's shape."""
    spec = daemon_set["spec"]
    template, pod = spec["template"]["metadata"], spec["template"]["spec"]
    return _without_empty(
        {
            "name": daemon_set["metadata"]["name"],
            "labels": daemon_set["metadata"]["labels"],
            "selector": spec["selector"]["matchLabels"],
            "pod_labels": template["labels"],
            "pod_annotations": template.get("annotations"),
            "node_selector": pod["nodeSelector"],
            "tolerations": pod["tolerations"],
            "affinity": pod.get("affinity"),
            "priority_class": pod["priorityClassName"],
            "update_strategy": spec["updateStrategy"],
            "service_account": pod["serviceAccountName"],
            "runtime_class": pod.get("runtimeClassName"),
            "host_pid": pod.get("hostPID", False),
            "automount": pod.get("automountServiceAccountToken"),
            "init_containers": {item["name"]: container(item) for item in pod.get("initContainers", ())},
            "containers": {item["name"]: container(item) for item in pod["containers"]},
            "volumes": {item["name"]: volume(item) for item in pod["volumes"]},
            "rbac": _without_empty({kind: rules(manifests, kind) for kind in ("Role", "ClusterRole")}),
            "service": service(manifests),
            "service_monitor": service_monitor(manifests),
        }
    )


def container(item: Manifest) -> Manifest:
    words = [*item.get("command", ()), *item.get("args", ())]
    script = words[2] if words[:2] == ["sh", "-c"] else " ".join(words)
    pre_stop = item.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "", ""])[2]
    waits = "until" in script
    return _without_empty(
        {
            "env": {entry["name"]: _value(entry) for entry in item.get("env", ())},
            "mounts": {entry["mountPath"]: _mount(entry) for entry in item.get("volumeMounts", ())},
            "security": item.get("securityContext"),
            "ports": item.get("ports"),
            **{name: _probe(item[name]) for name in _PROBES if name in item},
            "image": item["image"],
            "pre_stop_removes": pre_stop.removeprefix("rm -f ").split(),
            "runs": "" if waits or "sleep" in script else script,
            "waits_for": next((word for word in script.split() if word.startswith("/")), "") if waits else "",
        }
    )


def volume(item: Manifest) -> Manifest:
    if "hostPath" in item:
        path = item["hostPath"]
        return {"hostPath": path["path"]} | ({"type": path["type"]} if "type" in path else {})
    if "configMap" not in item:
        return item
    source = item["configMap"]
    mode = {"defaultMode": source["defaultMode"]} if "defaultMode" in source else {}
    return {"configMap": source["name"]} | mode


def rules(manifests: Sequence[Manifest], kind: str) -> Manifest:
    return {item["metadata"]["name"]: item["rules"] for item in of_kind(manifests, kind)}


def service(manifests: Sequence[Manifest]) -> Manifest:
    for item in of_kind(manifests, "Service"):
        metadata, spec = item["metadata"], item["spec"]
        return _without_empty(
            {"name": metadata["name"], "labels": metadata["labels"], "annotations": metadata.get("annotations"), **spec}
        )
    return {}


def service_monitor(manifests: Sequence[Manifest]) -> Manifest:
    """Return the ServiceMonitor in the oracle's shape; empty if there is none."""
    for item in of_kind(manifests, "ServiceMonitor"):
        return {"name": item["metadata"]["name"], "labels": item["metadata"]["labels"], **item["spec"]}
    return {}


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every leaf that differs; a list is one leaf."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({*expected, *found}):
            yield from differences(expected.get(key), found.get(key), f"{path}.{key}" if path else key)
    elif expected != found:
        yield path


def _value(entry: Manifest) -> str:
    if "valueFrom" in entry:
        return f"fieldRef:{entry['valueFrom']['fieldRef']['fieldPath']}"
    return str(entry.get("value", ""))


def _mount(entry: Manifest) -> Manifest:
    renamed = {"name": "volume", "mountPropagation": "propagation"}
    return {renamed.get(key, key): value for key, value in entry.items() if key != "mountPath"}


def _probe(probe: Manifest) -> Manifest:
    return {key: value for key, value in probe.items() if key != "exec"}


def _without_empty(table: Manifest) -> Manifest:
    return {key: value for key, value in table.items() if value not in (None, "", [], {})}
