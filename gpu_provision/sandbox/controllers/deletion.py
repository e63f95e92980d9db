"""The garbage collector and the namespace controller: both delete what nothing holds any more."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import DEFINITIONS, EVENTS, NAMESPACES, ApiResource, Object, ServedResource, ignoring
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController, gather_all
from gpu_provision.sandbox.objects import ConditionUpdate, Key

_SYNC_PAUSE = 0.02
_FOREGROUND, _ORPHAN = "foregroundDeletion", "orphan"
_REMEMBERED = 20_000
_GONE, _GOING, _SOLID = "gone", "going", "solid"
_FINALIZER = "kubernetes"
_NOT_SERVED = frozenset({404, 405})
_LOOK_AGAIN_SECONDS = 5.0


class OwnedRef(NamedTuple):
    """One object."""

    resource: ApiResource
    key: Key


Change = Callable[[OwnedRef, Object | None, Object | None], None]
Content = dict[ApiResource, list[Object]]


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
                self._on_change(resource, obj, None)
            self._cluster.forget(resource)
        for resource in set(served) - set(self.followed):
            self.followed[resource] = served[resource]
            self._cluster.informer(resource).on_change(partial(self._on_change, resource))

    def on_change(self, handler: Change) -> None:
        """Call ``handler(ref, before, after)`` for each change from now on."""
        self._handlers.append(handler)

    def _on_change(self, resource: ApiResource, old: Object | None, new: Object | None) -> None:
        ref = OwnedRef(resource, objects.key_of(new or old or {}))
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

    def get(self, ref: OwnedRef) -> Object | None:
        """Return the object as it is known."""
        return self._cluster.informer(ref.resource).objects.get(ref.key)

    async def wait_for_sync(self) -> None:
        """Return once all served resources are known; one that is removed meanwhile holds up nothing."""
        await self._cluster.informer(DEFINITIONS).wait_for_sync()
        while not all(self._cluster.informer(one).is_synced for one in self.followed):  # noqa: ASYNC110  they may change
            await asyncio.sleep(_SYNC_PAUSE)


class GarbageCollector(QueueController[OwnedRef]):
    """Acts on objects that have owners and on owners whose deletion has a policy."""

    name = "garbage-collector"

    def __init__(self, cluster: ControllerManager, graph: OwnershipGraph) -> None:
        """Follow everything."""
        super().__init__(cluster)
        self._graph = graph
        self._gone: OrderedDict[str, None] = OrderedDict()
        graph.on_change(self._on_change)

    async def run(self) -> None:
        """Work until cancelled, once every object is known."""
        await self._graph.wait_for_sync()
        await super().run()

    def _on_change(self, ref: OwnedRef, old: Object | None, new: Object | None) -> None:
        if new is not None:
            if objects.is_deleting(new):
                concerned = bool({_FOREGROUND, _ORPHAN} & set(objects.finalizers(new)))
            else:
                concerned = bool(objects.owners(new)) and (old is None or objects.owners(old) != objects.owners(new))
            if concerned:
                self.queue.add(ref)
        elif old is not None:
            self._remember(objects.uid(old))
            for dependent in self._graph.dependents.get(objects.uid(old), ()):
                self.queue.add(dependent)
            for owner in objects.owners(old):
                found = self._graph.refs.get(owner["uid"])
                known = self._graph.get(found) if found else None
                if found and known and objects.is_deleting(known):
                    self.queue.add(found)

    def _remember(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    async def sync(self, key: OwnedRef) -> None:
        """Judge one object as an owner, then as a dependent."""
        obj = self._graph.get(key)
        if obj is None:
            return
        if objects.is_deleting(obj):
            await self._release(key, obj)
        elif objects.owners(obj):
            await self._collect_object(key, obj)

    async def _release(self, ref: OwnedRef, owner: Object) -> None:
        """Let an owner go that waits for its dependents, or whose dependents become orphans."""
        uid, finalizers, done = objects.uid(owner), objects.finalizers(owner), ""
        dependents = list(self._graph.dependents.get(uid, ()))
        if _ORPHAN in finalizers:
            for dependent in dependents:
                await self._disown(dependent, {uid})
            done = _ORPHAN
        elif _FOREGROUND in finalizers:
            if not any(self._blocks(dependent, uid) for dependent in dependents):
                done = _FOREGROUND
            for dependent in dependents:
                self.queue.add(dependent)
        if done:  # past the informer: the object may be gone with its last finalizer
            change = _change(owner, finalizers=[one for one in finalizers if one != done])
            await self.cluster.api.patch(ref.resource, objects.name(owner), change, objects.namespace(owner))

    def _blocks(self, ref: OwnedRef, uid: str) -> bool:
        owners = objects.owners(self._graph.get(ref) or {"metadata": {}})
        return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)

    async def _collect_object(self, ref: OwnedRef, obj: Object) -> None:
        states = {owner["uid"]: await self._state(owner, ref, obj) for owner in objects.owners(obj)}
        if _SOLID in states.values():
            lost = {uid for uid, state in states.items() if state != _SOLID}
            if lost:
                await self._disown(ref, lost)
            return
        uid, finalizers = objects.uid(obj), objects.finalizers(obj)
        blocked = any(self._blocks(one, uid) for one in self._graph.dependents.get(uid, ()))
        if _GOING in states.values() and blocked and _FOREGROUND not in finalizers:
            await self.cluster.patch(ref.resource, obj, _change(obj, finalizers=[*finalizers, _FOREGROUND]))
        await self.cluster.delete(ref.resource, obj)

    async def _state(self, owner: Mapping[str, Any], ref: OwnedRef, dependent: Object) -> str:
        uid, home = owner["uid"], ref.key[0]
        found = self._graph.refs.get(uid)
        known = self._graph.get(found) if found else None
        if found is None or known is None:
            if uid not in self._gone and not await self._is_gone(owner, dependent):
                return _SOLID
            self._remember(uid)
            return _GONE
        if found.key[0] in {"", home}:
            waits = objects.is_deleting(known) and _FOREGROUND in objects.finalizers(known)
            return _GOING if waits else _SOLID
        # An owner in another namespace is none; what is in no namespace cannot have lost it.
        shown = f"{owner['apiVersion']}/{owner['kind']}, namespace: {home}, name: {owner['name']}, uid: {uid}"
        message = f'ownerRef [{shown}] does not exist in namespace "{home}"'
        self.event(dependent, "OwnerRefInvalidNamespace", message, warning=True)
        return _GONE if home else _SOLID

    async def _is_gone(self, owner: Mapping[str, Any], dependent: Object) -> bool:
        kind = (owner["apiVersion"].rpartition("/")[0], owner["kind"])
        found = next((one for one in self._graph.followed.values() if (one.resource.group, one.kind) == kind), None)
        if found is None:
            return False
        namespace = objects.namespace(dependent) if found.namespaced else ""
        present = await self.cluster.api.find(found.resource, owner["name"], namespace)
        return present is None or objects.uid(present) != owner["uid"]

    async def _disown(self, ref: OwnedRef, uids: set[str]) -> None:
        obj = self._graph.get(ref)
        if obj is not None:
            kept = [owner for owner in objects.owners(obj) if owner["uid"] not in uids]
            await self.cluster.patch(ref.resource, obj, _change(obj, ownerReferences=kept))


def _change(obj: Object, **metadata: list[Any]) -> Object:
    version = {"uid": objects.uid(obj), "resourceVersion": obj["metadata"]["resourceVersion"]}
    return {"metadata": {**version, **metadata}}


def build_conditions(content: Content) -> list[ConditionUpdate]:
    """Return the conditions that say what holds a namespace back."""
    finalizers = Counter(
        finalizer for found in content.values() for obj in found for finalizer in objects.finalizers(obj)
    )
    kinds = ", ".join(
        f"{resource.plural}.{resource.group} has {len(found)} resource instances"
        for resource, found in content.items()
        if found
    )
    named = ", ".join(f"{one} in {count} resource instances" for one, count in sorted(finalizers.items()))
    state, reason, message = "False", "ContentHasNoFinalizers", "All content-preserving finalizers finished"
    if named:
        state, reason = "True", "SomeFinalizersRemain"
        message = f"Some content in the namespace has finalizers remaining: {named}"
    remaining = f"Some resources are remaining: {kinds}"
    return [
        ConditionUpdate("NamespaceContentRemaining", "True", "SomeResourcesRemain", remaining),
        ConditionUpdate("NamespaceFinalizersRemaining", state, reason, message),
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
        graph.on_change(self._collect_changed)

    def _collect_changed(self, ref: OwnedRef, _old: Object | None, new: Object | None) -> None:
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
        await self._graph.wait_for_sync()
        workloads_first = sorted(self._graph.followed, key=lambda one: (not one.group, one))
        content = await self._content(key, [*workloads_first, EVENTS])
        for resource, found in content.items():
            await gather_all([self.cluster.delete(resource, obj) for obj in found if not objects.is_deleting(obj)])
        content = await self._content(key, list(content))
        if content:
            conditions = objects.set_conditions(namespace, objects.now(), *build_conditions(content))
            await self.cluster.write_status(NAMESPACES, namespace, {"conditions": conditions})
            self.queue.add_after(key, _LOOK_AGAIN_SECONDS)
            return
        present = await self.cluster.api.get(NAMESPACES, key)
        kept = {**(present.get("spec") or {}), "finalizers": [one for one in finalizers if one != _FINALIZER]}
        await self.cluster.api.update(NAMESPACES, {**present, "spec": kept}, subresource="finalize")

    async def _content(self, namespace: str, resources: list[ApiResource]) -> Content:
        content: Content = {}
        for resource in resources:
            if resource != EVENTS and not self._graph.followed[resource].namespaced:
                continue
            found: list[Object] = []
            with ignoring(*_NOT_SERVED):
                found, _ = await self.cluster.api.list(resource, namespace)
            if inside := [obj for obj in found if objects.namespace(obj) == namespace]:
                content[resource] = inside
        return content
