"""The garbage collector and the namespace controller: both delete what nothing holds any more."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import (
    DEFINITIONS,
    EVENTS,
    NAMESPACES,
    NOT_FOUND,
    ApiError,
    ApiResource,
    Object,
    ServedResource,
)
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController, gather_all
from gpu_provision.sandbox.objects import ConditionUpdate, Key

_SYNC_PAUSE = 0.02


class OwnedRef(NamedTuple):
    """One object."""

    resource: ApiResource
    key: Key


Change = Callable[[OwnedRef, Object | None, Object | None], None]


class OwnershipGraph:
    """Follows all served resources but Events, custom ones as they are defined.

    Attributes:
        followed: The resources that are followed, with the kinds of their objects.
        refs: uid -> the object that has it.
        dependents: Owner's uid -> the objects that name it as owner.
    """

    def __init__(self, cluster: ControllerManager, resources: Callable[[], Iterable[ServedResource]]) -> None:
        """Follow what ``resources`` names, and look again whenever a CustomResourceDefinition changes."""
        self._cluster, self._resources = cluster, resources
        self._handlers: list[Change] = []
        self.followed: dict[ApiResource, ServedResource] = {}
        self.refs: dict[str, OwnedRef] = {}
        self.dependents: dict[str, dict[OwnedRef, None]] = {}
        cluster.informer(DEFINITIONS).on_event(lambda _type, _obj: self._refresh())
        self._refresh()

    def _refresh(self) -> None:
        """Follow what is new and forget what is no longer served."""
        served = {one.resource: one for one in self._resources() if one.resource != EVENTS}
        for resource in set(self.followed) - set(served):
            del self.followed[resource]
            for obj in tuple(self._cluster.informer(resource).objects.values()):
                self._changed(OwnedRef(resource, objects.key_of(obj)), obj, None)
            self._cluster.forget(resource)
        for resource in set(served) - set(self.followed):
            self.followed[resource] = served[resource]
            self._cluster.informer(resource).on_change(self._handler(resource))

    def on_change(self, handler: Change) -> None:
        """Call ``handler(ref, before, after)`` for each change from now on."""
        self._handlers.append(handler)

    def _handler(self, resource: ApiResource) -> Callable[[Object | None, Object | None], None]:
        def changed(old: Object | None, new: Object | None) -> None:
            self._changed(OwnedRef(resource, objects.key_of(new or old or {})), old, new)

        return changed

    def _changed(self, ref: OwnedRef, old: Object | None, new: Object | None) -> None:
        before = {owner["uid"] for owner in objects.owners(old)} if old else set()
        after = {owner["uid"] for owner in objects.owners(new)} if new else set()
        for uid in before - after:
            members = self.dependents.get(uid, {})
            members.pop(ref, None)
            if not members:
                self.dependents.pop(uid, None)
        for uid in after - before:
            self.dependents.setdefault(uid, {})[ref] = None
        if new is not None:
            self.refs[objects.uid(new)] = ref
        elif old is not None:
            self.refs.pop(objects.uid(old), None)
        for handler in self._handlers:
            handler(ref, old, new)

    def find_resource(self, api_version: str, kind: str) -> ServedResource | None:
        """Return the resource that holds objects of a kind; None if no served one does."""
        group = api_version.rpartition("/")[0]
        return next((one for one in self.followed.values() if (one.resource.group, one.kind) == (group, kind)), None)

    def get(self, ref: OwnedRef) -> Object | None:
        """Return the object as it is known."""
        return self._cluster.informer(ref.resource).objects.get(ref.key)

    async def synced(self) -> None:
        """Return once all served resources are known; one that is removed meanwhile holds up nothing."""
        await self._cluster.informer(DEFINITIONS).synced()
        while not all(self._cluster.informer(one).is_synced for one in self.followed):  # noqa: ASYNC110  they may change
            await asyncio.sleep(_SYNC_PAUSE)


FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_REMEMBERED = 20_000
_GONE, _GOING, _SOLID = "gone", "going", "solid"


def waits_for_dependents(owner: Object) -> bool:
    """Whether the owner is being deleted in the foreground, so waits for its dependents."""
    return objects.is_deleting(owner) and FOREGROUND in objects.finalizers(owner)


class GarbageCollector(QueueController[OwnedRef]):
    """Acts on objects that have owners and on owners whose deletion has a policy."""

    name = "garbage-collector"

    def __init__(self, cluster: ControllerManager, graph: OwnershipGraph) -> None:
        """Follow everything."""
        super().__init__(cluster)
        self._graph = graph
        self._gone: OrderedDict[str, None] = OrderedDict()
        graph.on_change(self._changed)

    async def run(self) -> None:
        """Work until cancelled, once every object is known."""
        await self._graph.synced()
        await super().run()

    def _changed(self, ref: OwnedRef, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._remember(objects.uid(old))
            for dependent in self._graph.dependents.get(objects.uid(old), ()):
                self.queue.add(dependent)
            self._wake_owners(old)
        elif new is not None and _needs_sync(old, new):
            self.queue.add(ref)

    def _remember(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    def _wake_owners(self, obj: Object) -> None:
        for owner in objects.owners(obj):
            ref = self._graph.refs.get(owner["uid"])
            known = self._graph.get(ref) if ref else None
            if ref and known and objects.is_deleting(known):
                self.queue.add(ref)

    async def sync(self, key: OwnedRef) -> None:
        """Judge one object as an owner, then as a dependent."""
        obj = self._graph.get(key)
        if obj is None:
            return
        if objects.is_deleting(obj):
            await self._release(key, obj)
        elif objects.owners(obj):
            await self._judge(key, obj)

    async def _release(self, ref: OwnedRef, owner: Object) -> None:
        uid, finalizers = objects.uid(owner), objects.finalizers(owner)
        dependents = list(self._graph.dependents.get(uid, ()))
        if ORPHAN in finalizers:
            for dependent in dependents:
                await self._disown(dependent, {uid})
            await self._without(ref, owner, ORPHAN)
        elif FOREGROUND in finalizers:
            if not any(self._blocks(dependent, uid) for dependent in dependents):
                await self._without(ref, owner, FOREGROUND)
            for dependent in dependents:
                self.queue.add(dependent)

    def _blocks(self, ref: OwnedRef, uid: str) -> bool:
        obj = self._graph.get(ref)
        return obj is not None and any(
            owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in objects.owners(obj)
        )

    async def _without(self, ref: OwnedRef, obj: Object, finalizer: str) -> None:
        kept = [one for one in objects.finalizers(obj) if one != finalizer]
        change = {"metadata": {"finalizers": kept, "uid": objects.uid(obj), "resourceVersion": _version(obj)}}
        await self.cluster.api.patch(ref.resource, objects.name(obj), change, objects.namespace(obj))

    async def _judge(self, ref: OwnedRef, obj: Object) -> None:
        states = {owner["uid"]: await self._state(owner, ref, obj) for owner in objects.owners(obj)}
        if _SOLID in states.values():
            lost = {uid for uid, state in states.items() if state != _SOLID}
            if lost:
                await self._disown(ref, lost)
            return
        uid = objects.uid(obj)
        blocked = any(self._blocks(one, uid) for one in self._graph.dependents.get(uid, ()))
        if _GOING in states.values() and blocked and FOREGROUND not in objects.finalizers(obj):
            finalizers = [*objects.finalizers(obj), FOREGROUND]
            change = {"metadata": {"finalizers": finalizers, "uid": uid, "resourceVersion": _version(obj)}}
            await self.cluster.patch(ref.resource, obj, change)
        await self.cluster.delete(ref.resource, obj)

    async def _state(self, owner: Mapping[str, Any], ref: OwnedRef, dependent: Object) -> str:
        uid = owner["uid"]
        found = self._graph.refs.get(uid)
        known = self._graph.get(found) if found else None
        if found is not None and known is not None:
            if found.key[0] not in {"", ref.key[0]}:
                return self._elsewhere(owner, ref, dependent)
            return _GOING if waits_for_dependents(known) else _SOLID
        if uid in self._gone or await self._is_gone(owner, dependent):
            self._remember(uid)
            return _GONE
        return _SOLID

    def _elsewhere(self, owner: Mapping[str, Any], ref: OwnedRef, dependent: Object) -> str:
        """An owner in another namespace is none; what is in no namespace cannot have lost it."""
        home = ref.key[0]
        shown = f"{owner['apiVersion']}/{owner['kind']}, namespace: {home}, name: {owner['name']}, uid: {owner['uid']}"
        message = f'ownerRef [{shown}] does not exist in namespace "{home}"'
        self.event(dependent, "OwnerRefInvalidNamespace", message, warning=True)
        return _GONE if home else _SOLID

    async def _is_gone(self, owner: Mapping[str, Any], dependent: Object) -> bool:
        found = self._graph.find_resource(owner["apiVersion"], owner["kind"])
        if found is None:
            return False
        namespace = objects.namespace(dependent) if found.namespaced else ""
        try:
            present = await self.cluster.api.get(found.resource, owner["name"], namespace)
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                raise
            return True
        return bool(objects.uid(present) != owner["uid"])

    async def _disown(self, ref: OwnedRef, uids: set[str]) -> None:
        obj = self._graph.get(ref)
        if obj is None:
            return
        kept = [owner for owner in objects.owners(obj) if owner["uid"] not in uids]
        change = {"ownerReferences": kept, "uid": objects.uid(obj), "resourceVersion": _version(obj)}
        await self.cluster.patch(ref.resource, obj, {"metadata": change})


def _version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])


def _needs_sync(old: Object | None, new: Object) -> bool:
    if objects.is_deleting(new):
        return bool({FOREGROUND, ORPHAN} & set(objects.finalizers(new)))
    return bool(objects.owners(new)) and (old is None or objects.owners(old) != objects.owners(new))


_FINALIZER = "kubernetes"

_NOT_SERVED = frozenset({404, 405})
_LOOK_AGAIN_SECONDS = 5.0
Content = dict[ApiResource, list[Object]]


def build_conditions(content: Content) -> list[ConditionUpdate]:
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
        ConditionUpdate(
            "NamespaceContentRemaining", "True", "SomeResourcesRemain", f"Some resources are remaining: {kinds}"
        ),
        ConditionUpdate(
            "NamespaceFinalizersRemaining",
            "True",
            "SomeFinalizersRemain",
            f"Some content in the namespace has finalizers remaining: {named}",
        )
        if named
        else ConditionUpdate(
            "NamespaceFinalizersRemaining",
            "False",
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        ),
    ]


class Namespaces(QueueController[str]):
    """Acts on namespaces that are being deleted."""

    name = "namespace"
    watches = (NAMESPACES,)

    def __init__(self, cluster: ControllerManager, graph: OwnershipGraph) -> None:
        """Follow namespaces, and objects that vanish from them."""
        super().__init__(cluster)
        self._graph = graph
        self._namespaces = cluster.informer(NAMESPACES)
        self._namespaces.on_event(lambda _, obj: self.queue.add(objects.name(obj)))
        graph.on_change(self._changed)

    def _changed(self, ref: OwnedRef, _old: Object | None, new: Object | None) -> None:
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
        await self._graph.synced()
        workloads_first = sorted(self._graph.followed, key=lambda one: (not one.group, one))
        content = await self._content(key, [*workloads_first, EVENTS])
        for resource, found in content.items():
            await gather_all([self.cluster.delete(resource, obj) for obj in found if not objects.is_deleting(obj)])
        content = await self._content(key, list(content))
        if content:
            await self._report(namespace, content)
            self.queue.add_after(key, _LOOK_AGAIN_SECONDS)
            return
        await self._finalize(namespace, [one for one in finalizers if one != _FINALIZER])

    async def _content(self, namespace: str, resources: list[ApiResource]) -> Content:
        content: Content = {}
        for resource in resources:
            if resource != EVENTS and not self._graph.followed[resource].namespaced:
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
        for condition in build_conditions(content):
            conditions = objects.set_condition(conditions, condition, objects.now())
        await self.cluster.write_status(NAMESPACES, namespace, {"conditions": conditions})

    async def _finalize(self, namespace: Object, finalizers: list[str]) -> None:
        present = await self.cluster.api.get(NAMESPACES, objects.name(namespace))
        body = {**present, "spec": {**(present.get("spec") or {}), "finalizers": finalizers}}
        await self.cluster.api.update(NAMESPACES, body, subresource="finalize")
