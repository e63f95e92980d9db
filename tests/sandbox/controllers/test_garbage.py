"""Deletion of namespaces."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.api import Resource
from gpu_provision.sandbox.controllers.resources import (
    DAEMON_SETS,
    DEFINITIONS,
    NAMESPACES,
    NODES,
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
