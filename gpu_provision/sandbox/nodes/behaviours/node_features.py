"""Publishing NodeFeature objects, as Node Feature Discovery's worker and GPU Feature Discovery do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.world import CONFLICT, NODE_FEATURES, NOT_FOUND

Object = dict[str, Any]

NODE_NAME_LABEL = "nfd.node.kubernetes.io/node-name"
PREFIX = "feature.node.kubernetes.io/"


def node_names(feature: Object) -> tuple[str, ...]:
    """Return the node that a NodeFeature is about, as an index wants it."""
    name = (feature["metadata"].get("labels") or {}).get(NODE_NAME_LABEL)
    return (name,) if name else ()


def _owners(pod: Mapping[str, Any]) -> list[Object]:
    """Return the pod's controller and the pod: the object goes when both are gone."""
    controllers = [
        {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}
        for owner in pod["metadata"].get("ownerReferences") or ()
    ]
    me = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return [*controllers, me]


def node_feature(name: str, container: Container, labels: Mapping[str, str], features: Mapping[str, Any]) -> Object:
    """Return the NodeFeature of a container's node."""
    return {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": name,
            "namespace": container.namespace,
            "labels": {NODE_NAME_LABEL: container.machine.name},
            "ownerReferences": _owners(container.pod),
        },
        "spec": {"features": dict(features), "labels": dict(sorted(labels.items()))},
    }


def differs(labels: Callable[[], Mapping[str, str]], from_these: Mapping[str, str]) -> Callable[[], bool]:
    """Return a condition: what would be published now is not what was."""
    return lambda: labels() != from_these


async def publish(container: Container, wanted: Object) -> None:
    """Create or update a NodeFeature; one that says the same already is left alone."""
    if container.world.features is not None:
        container.world.features.post(wanted)
        return
    api, name, namespace = container.world.api, wanted["metadata"]["name"], container.namespace
    while True:
        try:
            live = await _live(container, name)
            if live is None:
                await api.create(NODE_FEATURES, wanted, namespace)
            elif not _same(live, wanted):
                version = {"resourceVersion": live["metadata"]["resourceVersion"]}
                await api.update(NODE_FEATURES, {**wanted, "metadata": {**wanted["metadata"], **version}}, namespace)
        except ApiError as refusal:
            if refusal.code not in {CONFLICT, NOT_FOUND}:
                raise
            if refusal.code == NOT_FOUND:
                container.log(f"failed to publish NodeFeature {namespace}/{name}: {refusal.message}")
            await container.world.pause()
        else:
            return


async def _live(container: Container, name: str) -> Object | None:
    try:
        return await container.world.api.get(NODE_FEATURES, name, container.namespace)
    except ApiError as refusal:
        if refusal.code != NOT_FOUND:
            raise
        return None


def _same(live: Object, wanted: Object) -> bool:
    owners = live["metadata"].get("ownerReferences") or []
    return bool(live.get("spec") == wanted["spec"] and owners == wanted["metadata"]["ownerReferences"])
