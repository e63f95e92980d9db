"""NodeFeature objects, as Node Feature Discovery's worker and GPU Feature Discovery publish them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import kube

NODE = "nfd.node.kubernetes.io/node-name"
_TRIES = 5


def owners(kinds: Iterable[str]) -> list[kube.Object]:
    """Return references to the pod's DaemonSet and to the pod: what they publish goes when they go."""
    namespace, name = kube.namespace(), os.environ.get("POD_NAME", "")
    if not name:
        return []
    pod = kube.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["metadata"]
    controllers = [
        {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")} for owner in pod["ownerReferences"]
    ]
    me = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["uid"]}
    return [*(controllers if "ds" in kinds else ()), *([me] if "pod" in kinds else ())]


def publish(
    name: str, node: str, labels: Mapping[str, str], features: Mapping[str, Any], owned_by: list[kube.Object]
) -> None:
    """Create a NodeFeature or update it. Raises ApiError."""
    collection = f"{kube.NODE_FEATURES}/namespaces/{kube.namespace()}/nodefeatures"
    metadata = {"name": name, "labels": {NODE: node}, "ownerReferences": owned_by}
    wanted = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": metadata,
        "spec": {"features": dict(features), "labels": dict(labels)},
    }
    for last in [False] * _TRIES + [True]:
        try:
            _put(collection, wanted)
        except kube.ApiError as refusal:
            if refusal.code != kube.CONFLICT or last:
                raise
        else:
            return


def _put(collection: str, wanted: kube.Object) -> None:
    path = f"{collection}/{wanted['metadata']['name']}"
    try:
        live = kube.request("GET", path)
    except kube.ApiError as refusal:
        if refusal.code != kube.NOT_FOUND:
            raise
        kube.request("POST", collection, wanted)
        return
    if (
        live["spec"] != wanted["spec"]
        or live["metadata"].get("ownerReferences", []) != wanted["metadata"]["ownerReferences"]
    ):
        version = {"resourceVersion": live["metadata"]["resourceVersion"]}
        kube.request("PUT", path, {**wanted, "metadata": {**wanted["metadata"], **version}})
