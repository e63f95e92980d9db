"""Namespace deletion: empties a namespace of everything, then lets it go."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.api import ApiError, Object, Resource
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller, all_of
from gpu_provision.sandbox.controllers.garbage import Ref, Universe
from gpu_provision.sandbox.controllers.objects import Condition
from gpu_provision.sandbox.controllers.resources import EVENTS, NAMESPACES

_FINALIZER = "kubernetes"
_FINE = (
    Condition(
        "NamespaceDeletionDiscoveryFailure", "False", "ResourcesDiscovered", "All resources successfully discovered"
    ),
    Condition(
        "NamespaceDeletionGroupVersionParsingFailure",
        "False",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    Condition(
        "NamespaceDeletionContentFailure",
        "False",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
)
"""What the real controller says about the steps of its work; ours cannot fail at them in part."""

_NOT_SERVED = frozenset({404, 405})
_LOOK_AGAIN_SECONDS = 5.0

Content = dict[Resource, list[Object]]


def remaining(content: Content) -> list[Condition]:
    """Return the conditions that say what holds a namespace back."""
    held = [obj for found in content.values() for obj in found if objects.finalizers(obj)]
    finalizers = {
        one: sum(one in objects.finalizers(obj) for obj in held) for obj in held for one in objects.finalizers(obj)
    }
    kinds = ", ".join(
        f"{resource.plural}.{resource.group} has {len(found)} resource instances"
        for resource, found in content.items()
        if found
    )
    named = ", ".join(f"{one} in {count} resource instances" for one, count in sorted(finalizers.items()))
    return [
        *_FINE,
        Condition("NamespaceContentRemaining", "True", "SomeResourcesRemain", f"Some resources are remaining: {kinds}"),
        Condition(
            "NamespaceFinalizersRemaining",
            "True",
            "SomeFinalizersRemain",
            f"Some content in the namespace has finalizers remaining: {named}",
        )
        if named
        else Condition(
            "NamespaceFinalizersRemaining",
            "False",
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        ),
    ]


class Namespaces(Controller[str]):
    """Acts on namespaces that are being deleted."""

    name = "namespace"
    watches = (NAMESPACES,)

    def __init__(self, cluster: Cluster, universe: Universe) -> None:
        """Follow namespaces, and objects that vanish from them."""
        super().__init__(cluster)
        self._universe = universe
        self._namespaces = cluster.informer(NAMESPACES)
        self._namespaces.on_event(lambda _, obj: self.queue.add(objects.name(obj)))
        universe.on_change(self._changed)

    def _changed(self, ref: Ref, _old: Object | None, new: Object | None) -> None:
        owner = self._namespaces.objects.get(("", ref.key[0])) if new is None else None
        if owner is not None and objects.is_deleting(owner):
            self.queue.add(ref.key[0])

    async def sync(self, key: str) -> None:
        """Delete what is in the namespace; finalize it once nothing is."""
        namespace = self._namespaces.objects.get(("", key))
        if namespace is None or not objects.is_deleting(namespace):
            return
        finalizers = (namespace.get("spec") or {}).get("finalizers") or []
        if _FINALIZER not in finalizers:
            return
        await self._universe.synced()
        workloads_first = sorted(self._universe.followed, key=lambda one: not one.group)
        content = await self._content(key, [*workloads_first, EVENTS])
        for resource, found in content.items():
            await all_of([self.cluster.delete(resource, obj) for obj in found if not objects.is_deleting(obj)])
        content = await self._content(key, list(content))
        if content:
            await self._report(namespace, content)
            self.queue.add_after(key, _LOOK_AGAIN_SECONDS)
            return
        await self._finalize(namespace, [one for one in finalizers if one != _FINALIZER])

    async def _content(self, namespace: str, resources: list[Resource]) -> Content:
        content: Content = {}
        for resource in resources:
            if not self._universe.is_namespaced(resource):
                continue
            try:
                found, _ = await self.cluster.api.list(resource, namespace)
            except ApiError as refusal:
                if refusal.code not in _NOT_SERVED:
                    raise
                continue
            inside = [obj for obj in found if objects.namespace(obj) == namespace]
            if inside:
                content[resource] = inside
        return content

    async def _report(self, namespace: Object, content: Content) -> None:
        conditions: list[dict[str, Any]] = objects.status(namespace).get("conditions") or []
        for condition in remaining(content):
            conditions = objects.with_condition(conditions, condition, objects.now())
        await self.cluster.write_status(NAMESPACES, namespace, {"conditions": conditions})

    async def _finalize(self, namespace: Object, finalizers: list[str]) -> None:
        present = await self.cluster.api.get(NAMESPACES, objects.name(namespace))
        body = {**present, "spec": {**(present.get("spec") or {}), "finalizers": finalizers}}
        await self.cluster.api.update(NAMESPACES, body, subresource="finalize")
