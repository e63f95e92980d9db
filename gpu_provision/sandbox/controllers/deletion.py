"""The garbage collector and the namespace controller: both delete what nothing holds any more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import DEFINITIONS, EVENTS, NAMESPACES, ApiError, ApiResource, Object
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController, gather_all
from gpu_provision.sandbox.informer import Key
from gpu_provision.sandbox.objects import (
    CLUSTER_SCOPED,
    ConditionUpdate,
    built_in_resources,
    defined_resource,
    resource_of,
)

_UNFOLLOWED = frozenset({"events"})


class ObjectRef(NamedTuple):
    """One object."""

    resource: ApiResource
    key: Key


class OwnershipGraph:
    """Follows all resources, custom ones as they are defined.

    Attributes:
        refs: uid -> the object that has it.
        dependents: Owner's uid -> the objects that name it as owner.
    """

    def __init__(self, cluster: ControllerManager, resources: Callable[[], Iterable[ApiResource]]) -> None:
        """Follow what ``resources`` names, and what CustomResourceDefinitions define."""
        self._cluster = cluster
        self._resources = resources
        self._handlers: list[Callable[[ObjectRef, Object | None, Object | None], None]] = []
        self._followed: set[ApiResource] = set()
        self._cluster_scoped: set[ApiResource] = set(CLUSTER_SCOPED)
        self.refs: dict[str, ObjectRef] = {}
        self.dependents: dict[str, dict[ObjectRef, None]] = {}
        self._definitions = cluster.informer(DEFINITIONS)
        self._definitions.on_event(lambda _type, _obj: self.look())

    def look(self) -> None:
        """Follow what is new and forget what is served no more."""
        wanted = self._wanted()
        for resource in self._followed - wanted:
            self._leave(resource)
        for resource in wanted - self._followed:
            self._followed.add(resource)
            self._cluster.informer(resource).on_change(self._handler(resource))

    def _wanted(self) -> set[ApiResource]:
        chosen: dict[tuple[str, str], ApiResource] = {}
        for resource in (*built_in_resources(), *self._resources(), *self._defined()):
            if resource.plural not in _UNFOLLOWED:
                chosen.setdefault((resource.group, resource.plural), resource)
        return set(chosen.values())

    def _defined(self) -> Iterator[ApiResource]:
        for definition in self._definitions.objects.values():
            resource = defined_resource(definition)
            if resource is None or objects.is_deleting(definition):
                continue
            if definition["spec"].get("scope") == "Cluster":
                self._cluster_scoped.add(resource)
            yield resource

    def _leave(self, resource: ApiResource) -> None:
        self._followed.discard(resource)
        for obj in tuple(self._cluster.informer(resource).objects.values()):
            self._changed(ObjectRef(resource, objects.key_of(obj)), obj, None)
        self._cluster.forget(resource)

    def on_change(self, handler: Callable[[ObjectRef, Object | None, Object | None], None]) -> None:
        """Call ``handler(ref, before, after)`` for each change from now on."""
        self._handlers.append(handler)

    def _handler(self, resource: ApiResource) -> Callable[[Object | None, Object | None], None]:
        def changed(old: Object | None, new: Object | None) -> None:
            present = new if new is not None else old
            if present is not None:
                self._changed(ObjectRef(resource, objects.key_of(present)), old, new)

        return changed

    def _changed(self, ref: ObjectRef, old: Object | None, new: Object | None) -> None:
        before = {owner["uid"] for owner in objects.owners(old)} if old else set()
        after = {owner["uid"] for owner in objects.owners(new)} if new else set()
        for uid in before - after:
            self._drop_dependent(uid, ref)
        for uid in after - before:
            self.dependents.setdefault(uid, {})[ref] = None
        if new is not None:
            self.refs[objects.uid(new)] = ref
        elif old is not None:
            self.refs.pop(objects.uid(old), None)
        for handler in self._handlers:
            handler(ref, old, new)

    def _drop_dependent(self, uid: str, ref: ObjectRef) -> None:
        members = self.dependents.get(uid, {})
        members.pop(ref, None)
        if not members:
            self.dependents.pop(uid, None)

    def is_namespaced(self, resource: ApiResource) -> bool:
        """Whether objects of the resource live in namespaces."""
        return resource not in self._cluster_scoped

    @property
    def followed(self) -> list[ApiResource]:
        """All followed resources."""
        return sorted(self._followed)

    def get(self, ref: ObjectRef) -> Object | None:
        """Return the object as it is known."""
        return self._cluster.informer(ref.resource).objects.get(ref.key)

    async def synced(self) -> None:
        """Return once the built-in resources are known."""
        await self._definitions.synced()
        self.look()
        for resource in built_in_resources():
            if resource in self._followed:
                await self._cluster.informer(resource).synced()


FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_NOT_FOUND = 404
_REMEMBERED = 20_000
_GONE, _GOING, _SOLID = "gone", "going", "solid"


def waits_for_dependents(owner: Object) -> bool:
    """Whether the owner is being deleted in the foreground, so waits for its dependents."""
    return objects.is_deleting(owner) and FOREGROUND in objects.finalizers(owner)


class GarbageCollector(QueueController[ObjectRef]):
    """Acts on objects that have owners and on owners whose deletion has a policy."""

    name = "garbage-collector"

    def __init__(self, cluster: ControllerManager, universe: OwnershipGraph) -> None:
        """Follow everything."""
        super().__init__(cluster)
        self._universe = universe
        self._gone: OrderedDict[str, None] = OrderedDict()
        universe.on_change(self._changed)

    async def run(self) -> None:
        """Work until cancelled, once every object is known."""
        await self._universe.synced()
        await super().run()

    def _changed(self, ref: ObjectRef, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._remember(objects.uid(old))
            for dependent in self._universe.dependents.get(objects.uid(old), ()):
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
            ref = self._universe.refs.get(owner["uid"])
            known = self._universe.get(ref) if ref else None
            if ref and known and objects.is_deleting(known):
                self.queue.add(ref)

    async def sync(self, key: ObjectRef) -> None:
        """Judge one object as an owner, then as a dependent."""
        obj = self._universe.get(key)
        if obj is None:
            return
        if objects.is_deleting(obj):
            await self._release(key, obj)
        elif objects.owners(obj):
            await self._judge(key, obj)

    async def _release(self, ref: ObjectRef, owner: Object) -> None:
        uid, finalizers = objects.uid(owner), objects.finalizers(owner)
        dependents = list(self._universe.dependents.get(uid, ()))
        if ORPHAN in finalizers:
            for dependent in dependents:
                await self._disown(dependent, {uid})
            await self._without(ref, owner, ORPHAN)
        elif FOREGROUND in finalizers:
            if not any(self._blocks(dependent, uid) for dependent in dependents):
                await self._without(ref, owner, FOREGROUND)
            for dependent in dependents:
                self.queue.add(dependent)

    def _blocks(self, ref: ObjectRef, uid: str) -> bool:
        obj = self._universe.get(ref)
        return obj is not None and any(
            owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in objects.owners(obj)
        )

    async def _without(self, ref: ObjectRef, obj: Object, finalizer: str) -> None:
        kept = [one for one in objects.finalizers(obj) if one != finalizer]
        change = {"metadata": {"finalizers": kept, "uid": objects.uid(obj), "resourceVersion": _version(obj)}}
        await self.cluster.api.patch(ref.resource, objects.name(obj), change, objects.namespace(obj))

    async def _judge(self, ref: ObjectRef, obj: Object) -> None:
        states = {owner["uid"]: await self._state(owner, ref, obj) for owner in objects.owners(obj)}
        if _SOLID in states.values():
            lost = {uid for uid, state in states.items() if state != _SOLID}
            if lost:
                await self._disown(ref, lost)
            return
        uid = objects.uid(obj)
        blocked = any(self._blocks(one, uid) for one in self._universe.dependents.get(uid, ()))
        if _GOING in states.values() and blocked and FOREGROUND not in objects.finalizers(obj):
            finalizers = [*objects.finalizers(obj), FOREGROUND]
            change = {"metadata": {"finalizers": finalizers, "uid": uid, "resourceVersion": _version(obj)}}
            await self.cluster.patch(ref.resource, obj, change)
        await self.cluster.delete(ref.resource, obj)

    async def _state(self, owner: Mapping[str, Any], ref: ObjectRef, dependent: Object) -> str:
        uid = owner["uid"]
        found = self._universe.refs.get(uid)
        known = self._universe.get(found) if found else None
        if found is not None and known is not None:
            if found.key[0] not in {"", ref.key[0]}:
                return self._elsewhere(owner, ref, dependent)
            return _GOING if waits_for_dependents(known) else _SOLID
        if uid in self._gone or await self._is_gone(owner, dependent):
            self._remember(uid)
            return _GONE
        return _SOLID

    def _elsewhere(self, owner: Mapping[str, Any], ref: ObjectRef, dependent: Object) -> str:
        """An owner in another namespace is none; what is in no namespace cannot have lost it."""
        home = ref.key[0]
        shown = f"{owner['apiVersion']}/{owner['kind']}, namespace: {home}, name: {owner['name']}, uid: {owner['uid']}"
        message = f'ownerRef [{shown}] does not exist in namespace "{home}"'
        self.event(ref.resource, dependent, "OwnerRefInvalidNamespace", message, warning=True)
        return _GONE if home else _SOLID

    async def _is_gone(self, owner: Mapping[str, Any], dependent: Object) -> bool:
        resource = resource_of(owner["apiVersion"], owner["kind"], self._universe.followed)
        if resource is None:
            return False
        namespace = objects.namespace(dependent) if self._universe.is_namespaced(resource) else ""
        try:
            present = await self.cluster.api.get(resource, owner["name"], namespace)
        except ApiError as refusal:
            if refusal.code != _NOT_FOUND:
                raise
            return True
        return bool(objects.uid(present) != owner["uid"])

    async def _disown(self, ref: ObjectRef, uids: set[str]) -> None:
        obj = self._universe.get(ref)
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

_FINE = (
    ConditionUpdate(
        "NamespaceDeletionDiscoveryFailure", "False", "ResourcesDiscovered", "All resources successfully discovered"
    ),
    ConditionUpdate(
        "NamespaceDeletionGroupVersionParsingFailure",
        "False",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    ConditionUpdate(
        "NamespaceDeletionContentFailure",
        "False",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
)
"""What the real controller says about the steps of its work; ours cannot fail at them in part."""

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
        *_FINE,
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

    def __init__(self, cluster: ControllerManager, universe: OwnershipGraph) -> None:
        """Follow namespaces, and objects that vanish from them."""
        super().__init__(cluster)
        self._universe = universe
        self._namespaces = cluster.informer(NAMESPACES)
        self._namespaces.on_event(lambda _, obj: self.queue.add(objects.name(obj)))
        universe.on_change(self._changed)

    def _changed(self, ref: ObjectRef, _old: Object | None, new: Object | None) -> None:
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
        for condition in build_conditions(content):
            conditions = objects.set_condition(conditions, condition, objects.now())
        await self.cluster.write_status(NAMESPACES, namespace, {"conditions": conditions})

    async def _finalize(self, namespace: Object, finalizers: list[str]) -> None:
        present = await self.cluster.api.get(NAMESPACES, objects.name(namespace))
        body = {**present, "spec": {**(present.get("spec") or {}), "finalizers": finalizers}}
        await self.cluster.api.update(NAMESPACES, body, subresource="finalize")
