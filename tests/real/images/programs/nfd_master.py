"""Node Feature Discovery's master, which turns NodeFeature objects into node labels, and its garbage collector."""

from __future__ import annotations

import fnmatch
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from . import kube
from .features import NODE
from .process import end_when_told, flags, say, seconds, serve

_CONFIG = Path("/etc/kubernetes/node-feature-discovery/nfd-master.conf")
_OWNED = "nfd.node.kubernetes.io/feature-labels"
_PREFIX = "feature.node.kubernetes.io/"
_DENIED = ("kubernetes.io", "*.kubernetes.io")
_ALLOWED = tuple(f"{star}{kind}.node.kubernetes.io" for kind in ("feature", "profile") for star in ("", "*."))
_ALL = f"{kube.NODE_FEATURES}/nodefeatures"
_PAUSE = 1.0
_VALUE = re.compile(r"|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST = 63

Key = tuple[str, str]


def main() -> int:
    """Follow NodeFeature objects and label nodes, until told to end."""
    end_when_told()
    options = flags(sys.argv[1:])
    config = yaml.safe_load(_CONFIG.read_text()) if _CONFIG.exists() else None
    extra = tuple((config or {}).get("extraLabelNs") or ())
    say("Node Feature Discovery Master", f"configuration: {config}")
    serve(int(options.get("port", "8080")), {"/healthz": lambda: (200, "ok\n")})
    while True:
        try:
            follow(extra)
        except (kube.ApiError, OSError) as problem:
            say(f"failed to follow NodeFeatures: {problem}")
        time.sleep(_PAUSE)


def follow(extra: Sequence[str]) -> None:
    """Label nodes for as long as one watch lasts."""
    known: dict[Key, kube.Object] = {}
    synced = False
    for event, item in kube.watch(_ALL):
        if event == "SYNCED":
            synced = True
            for node in kube.request("GET", "/api/v1/nodes")["items"]:
                _label(node, known.values(), extra)
            continue
        key = item["metadata"]["namespace"], item["metadata"]["name"]
        if event == "DELETED":
            known.pop(key, None)
        else:
            known[key] = item
        if synced and (name := node_of(item)):
            _label(kube.request("GET", f"/api/v1/nodes/{name}"), known.values(), extra)


def node_of(feature: Mapping[str, Any]) -> str:
    """Return the name of the node that a NodeFeature is about."""
    return str((feature["metadata"].get("labels") or {}).get(NODE, ""))


def wanted_labels(features: Iterable[Mapping[str, Any]], extra: Sequence[str]) -> dict[str, str]:
    """Return a node's labels from all that is said about it; later names win."""
    labels: dict[str, str] = {}
    for feature in sorted(features, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"])):
        labels |= feature["spec"].get("labels") or {}
    return {
        name: value for name, value in labels.items() if _allowed(name.partition("/")[0], extra) and _is_valid(value)
    }


def _is_valid(value: str) -> bool:
    """Whether Kubernetes takes a label's value; a machine's product name may have other characters in it."""
    return len(value) <= _LONGEST and bool(_VALUE.fullmatch(value))


def _allowed(namespace: str, extra: Sequence[str]) -> bool:
    if any(fnmatch.fnmatchcase(namespace, pattern) for pattern in (*_ALLOWED, *extra)):
        return True
    return not any(fnmatch.fnmatchcase(namespace, pattern) for pattern in _DENIED)


def change(node: Mapping[str, Any], wanted: Mapping[str, str]) -> kube.Object | None:
    """Return the patch that gives a node the wanted labels and removes those it was given before; None for none."""
    labels = node["metadata"].get("labels") or {}
    before = (node["metadata"].get("annotations") or {}).get(_OWNED, "")
    owned = {name if "/" in name else _PREFIX + name for name in before.split(",") if name}
    changed: dict[str, str | None] = {name: value for name, value in wanted.items() if labels.get(name) != value}
    changed |= dict.fromkeys(owned - wanted.keys())
    after = ",".join(sorted(name.removeprefix(_PREFIX) for name in wanted))
    if not changed and after == before:
        return None
    return {"metadata": {"labels": changed, "annotations": {_OWNED: after or None}}}


def _label(node: Mapping[str, Any], features: Iterable[Mapping[str, Any]], extra: Sequence[str]) -> None:
    name = node["metadata"]["name"]
    wanted = wanted_labels((each for each in features if node_of(each) == name), extra)
    patch = change(node, wanted)
    if patch is not None:
        say(f"node {name} gets {len(wanted)} labels")
        kube.patch(f"/api/v1/nodes/{name}", patch)


def collect() -> int:
    """Remove the NodeFeatures of nodes that are gone, now and then, until told to end."""
    end_when_told()
    options = flags(sys.argv[1:])
    say("Node Feature Discovery Garbage Collector")
    serve(int(options.get("port", "8080")), {"/healthz": lambda: (200, "ok\n")})
    while True:
        try:
            _collect_once()
        except (kube.ApiError, OSError) as problem:
            say(f"garbage collection failed: {problem}")
        time.sleep(seconds(options.get("gc-interval", "1h")))


def _collect_once() -> None:
    nodes = {node["metadata"]["name"] for node in kube.request("GET", "/api/v1/nodes")["items"]}
    for feature in kube.request("GET", _ALL)["items"]:
        if node_of(feature) not in nodes:
            metadata = feature["metadata"]
            collection = f"{kube.NODE_FEATURES}/namespaces/{metadata['namespace']}/nodefeatures"
            kube.request("DELETE", f"{collection}/{metadata['name']}")
