"""Node Feature Discovery's master, which turns NodeFeature objects into node labels, and its garbage collector."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.sandbox.operand_rules import label_patch, node_labels, node_names

from . import kube
from .process import end_when_told, flags, say, seconds, serve

_CONFIG = Path("/etc/kubernetes/node-feature-discovery/nfd-master.conf")
_ALL = f"{kube.NODE_FEATURES}/nodefeatures"
_PAUSE = 1.0


def main() -> int:
    """Follow NodeFeature objects and label nodes, until told to end."""
    _begin("Node Feature Discovery Master")
    config = yaml.safe_load(_CONFIG.read_text()) if _CONFIG.exists() else None
    say(f"configuration: {config}")
    extra = tuple((config or {}).get("extraLabelNs") or ())
    while True:
        try:
            _follow(extra)
        except (kube.ApiError, OSError) as problem:
            say(f"failed to follow NodeFeatures: {problem}")
        time.sleep(_PAUSE)


def _begin(title: str) -> dict[str, str]:
    end_when_told()
    say(title)
    options = flags(sys.argv[1:])
    serve(int(options.get("port", "8080")), {"/healthz": lambda: (200, "ok\n")})
    return options


def _follow(extra: Sequence[str]) -> None:
    """Label nodes for as long as one watch lasts."""
    known: dict[tuple[str, str], kube.Object] = {}
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
        for name in node_names(item) if synced else ():
            _label(kube.request("GET", f"/api/v1/nodes/{name}"), known.values(), extra)


def _label(node: Mapping[str, Any], features: Iterable[Mapping[str, Any]], extra: Sequence[str]) -> None:
    name = node["metadata"]["name"]
    wanted = node_labels((each for each in features if name in node_names(each)), extra)
    patch = label_patch(node, wanted)
    if patch is not None:
        say(f"node {name} gets {len(wanted)} labels")
        kube.patch(f"/api/v1/nodes/{name}", patch)


def collect() -> int:
    """Remove the NodeFeatures of nodes that are gone, now and then, until told to end."""
    options = _begin("Node Feature Discovery Garbage Collector")
    while True:
        try:
            nodes = {node["metadata"]["name"] for node in kube.request("GET", "/api/v1/nodes")["items"]}
            for feature in kube.request("GET", _ALL)["items"]:
                if not nodes.issuperset(node_names(feature)):
                    namespace, name = feature["metadata"]["namespace"], feature["metadata"]["name"]
                    kube.request("DELETE", f"{kube.NODE_FEATURES}/namespaces/{namespace}/nodefeatures/{name}")
        except (kube.ApiError, OSError) as problem:
            say(f"garbage collection failed: {problem}")
        time.sleep(seconds(options.get("gc-interval", "1h")))
