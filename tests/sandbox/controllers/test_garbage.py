"""Deletion with its three policies, and of namespaces."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.api import Resource
from gpu_provision.sandbox.controllers.resources import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEFINITIONS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
)

WIDGETS = Resource("example.com", "v1", "widgets")


async def define_widgets(lab: Any) -> Any:
    """Define a namespaced custom resource."""
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    body = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": names,
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
    }
    await lab.api.create(
        DEFINITIONS,
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"},
            "spec": body,
        },
    )


def owned_by(kind: Any, owner: Any, *, block: bool = False) -> Any:
    """Return metadata with one owner."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": block,
    }
    return {"ownerReferences": [reference]}


def test_what_an_owner_leaves_behind_goes(lab: Any) -> None:
    """Across kinds, custom ones included, and through generations."""

    async def story(lab: Any) -> None:
        await define_widgets(lab)
        first = await lab.create(CONFIG_MAPS, "ConfigMap", "first")

        async def created() -> Any:
            return await lab.create(WIDGETS, "Widget", "w", metadata=owned_by("ConfigMap", first))

        widget = await lab.until(created)
        await lab.create(CONFIG_MAPS, "ConfigMap", "last", metadata=owned_by("Widget", widget))
        await lab.api.delete(CONFIG_MAPS, "first", "default")
        await lab.gone(WIDGETS, "w")
        await lab.gone(CONFIG_MAPS, "last")

    lab(story)


def test_an_object_with_a_false_owner_goes(lab: Any) -> None:
    """An owner of the right name and another uid is no owner."""

    async def story(lab: Any) -> None:
        first = await lab.create(CONFIG_MAPS, "ConfigMap", "first")
        false = {**first, "metadata": {"name": "first", "uid": "another"}}
        await lab.create(CONFIG_MAPS, "ConfigMap", "second", metadata=owned_by("ConfigMap", false))
        await lab.gone(CONFIG_MAPS, "second")

    lab(story)


def test_an_object_with_one_owner_left_stays(lab: Any) -> None:
    """It loses the reference to the owner that is gone."""

    async def story(lab: Any) -> None:
        first = await lab.create(CONFIG_MAPS, "ConfigMap", "first")
        second = await lab.create(CONFIG_MAPS, "ConfigMap", "second")
        both = [owned_by("ConfigMap", one)["ownerReferences"][0] for one in (first, second)]
        await lab.create(CONFIG_MAPS, "ConfigMap", "child", metadata={"ownerReferences": both})
        await lab.api.delete(CONFIG_MAPS, "first", "default")

        async def one_owner() -> Any:
            child = await lab.api.get(CONFIG_MAPS, "child", "default")
            return [one["name"] for one in child["metadata"]["ownerReferences"]] == ["second"]

        await lab.until(one_owner)

    lab(story)


def test_orphaned_dependents_stay(lab: Any, template: Any) -> None:
    """The finalizer ``orphan`` frees the pods before the owner goes."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        labels = {"app": "x"}
        body = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template(labels)}
        await lab.create(REPLICA_SETS, "ReplicaSet", "x", spec=body, metadata={"finalizers": ["orphan"]})
        await lab.status_of(REPLICA_SETS, "x", availableReplicas=1)
        await lab.api.delete(REPLICA_SETS, "x", "default")
        await lab.gone(REPLICA_SETS, "x")
        (pod,) = await lab.running()
        assert "ownerReferences" not in pod["metadata"]

    lab(story)


def test_foreground_deletion_waits_for_the_dependents(lab: Any, template: Any) -> None:
    """The owner goes last."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        labels = {"app": "x"}
        pods = template(labels, outcome="Stuck")
        body = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pods}
        metadata = {"finalizers": ["foregroundDeletion"]}
        await lab.create(REPLICA_SETS, "ReplicaSet", "x", spec=body, metadata=metadata)
        await lab.status_of(REPLICA_SETS, "x", availableReplicas=1)
        await lab.api.delete(REPLICA_SETS, "x", "default")

        async def marked() -> Any:
            return [pod for pod in await lab.pods() if pod["metadata"].get("deletionTimestamp")]

        (pod,) = await lab.until(marked)
        assert await lab.api.get(REPLICA_SETS, "x", "default")
        await lab.api.delete(PODS, pod["metadata"]["name"], "default", 0)
        await lab.gone(REPLICA_SETS, "x")

    lab(story)


def test_a_namespace_is_emptied_and_goes(lab: Any, template: Any) -> None:
    """Workloads, custom objects and configuration; nothing outside is touched."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await define_widgets(lab)
        await lab.api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "t"}})
        labels = {"app": "d"}
        body = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": labels}, "template": template(labels)},
        }
        await lab.api.create(DAEMON_SETS, body, "t")

        async def runs() -> Any:
            return await lab.pods(namespace="t")

        await lab.until(runs)
        widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
        await lab.api.create(WIDGETS, widget, "t")
        await lab.api.create(WIDGETS, widget, "default")
        await lab.api.delete(NAMESPACES, "t")
        await lab.gone(NAMESPACES, "t", "")
        assert not await lab.pods(namespace="t")
        assert await lab.api.get(WIDGETS, "w", "default")
        assert await lab.api.get(NODES, "a")

    lab(story)


def test_a_namespace_says_what_holds_it_back(lab: Any) -> None:
    """A finalizer that nobody removes is named in the namespace's conditions."""

    async def story(lab: Any) -> None:
        await lab.api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "t"}})
        metadata = {"name": "held", "finalizers": ["example.com/wait"]}
        await lab.api.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, "t")
        await lab.api.delete(NAMESPACES, "t")

        async def reported() -> Any:
            status = (await lab.api.get(NAMESPACES, "t"))["status"]
            return {one["type"]: one["message"] for one in status.get("conditions") or ()}

        messages = await lab.until(reported)
        assert "configmaps. has 1 resource instances" in messages["NamespaceContentRemaining"]
        assert "example.com/wait in 1 resource instances" in messages["NamespaceFinalizersRemaining"]
        await lab.api.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, "t")
        await lab.gone(NAMESPACES, "t", "")

    lab(story)
