"""NodeFeature objects, as Node Feature Discovery's worker and GPU Feature Discovery publish them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpu_provision.sandbox.operand_rules import node_feature

from . import kube

_TRIES = 5


def publish(name: str, node: str, labels: Mapping[str, str]) -> None:
    """Create or update a NodeFeature that the pod and its DaemonSet own. Raises ApiError."""
    pod = kube.request("GET", f"/api/v1/namespaces/{kube.namespace()}/pods/{os.environ['POD_NAME']}")
    collection = f"{kube.NODE_FEATURES}/namespaces/{kube.namespace()}/nodefeatures"
    wanted = node_feature(name, pod, node, labels)
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
    owners = wanted["metadata"]["ownerReferences"]
    if live["spec"] != wanted["spec"] or live["metadata"].get("ownerReferences") != owners:
        version = {"resourceVersion": live["metadata"]["resourceVersion"]}
        kube.request("PUT", path, {**wanted, "metadata": {**wanted["metadata"], **version}})
