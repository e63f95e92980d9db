"""Every object of the cluster but events: who owns it and which namespace it is in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gpu_provision.sandbox.api import Object, Resource
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.cluster import Cluster
from gpu_provision.sandbox.controllers.resources import (
    CLUSTER_SCOPED,
    DEFINITIONS,
    built_in_resources,
    defined_resource,
)
from gpu_provision.sandbox.informer import Key

_UNFOLLOWED = frozenset({"events"})


class Ref(NamedTuple):
    """One object."""

    resource: Resource
    key: Key


class Universe:
    """Follows all resources, custom ones as they are defined.

    Attributes:
        refs: uid -> the object that has it.
        dependents: Owner's uid -> the objects that name it as owner.
    """

    def __init__(self, cluster: Cluster, resources: Callable[[], Iterable[Resource]]) -> None:
        """Follow what ``resources`` names, and what CustomResourceDefinitions define."""
        self._cluster = cluster
        self._resources = resources
        self._handlers: list[Callable[[Ref, Object | None, Object | None], None]] = []
        self._followed: set[Resource] = set()
        self._cluster_scoped: set[Resource] = set(CLUSTER_SCOPED)
        self.refs: dict[str, Ref] = {}
        self.dependents: dict[str, dict[Ref, None]] = {}
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

    def _wanted(self) -> set[Resource]:
        chosen: dict[tuple[str, str], Resource] = {}
        for resource in (*built_in_resources(), *self._resources(), *self._defined()):
            if resource.plural not in _UNFOLLOWED:
                chosen.setdefault((resource.group, resource.plural), resource)
        return set(chosen.values())

    def _defined(self) -> Iterator[Resource]:
        for definition in self._definitions.objects.values():
            resource = defined_resource(definition)
            if resource is None or objects.is_deleting(definition):
                continue
            if definition["spec"].get("scope") == "Cluster":
                self._cluster_scoped.add(resource)
            yield resource

    def _leave(self, resource: Resource) -> None:
        self._followed.discard(resource)
        for obj in tuple(self._cluster.informer(resource).objects.values()):
            self._changed(Ref(resource, objects.key_of(obj)), obj, None)
        self._cluster.forget(resource)

    def on_change(self, handler: Callable[[Ref, Object | None, Object | None], None]) -> None:
        """Call ``handler(ref, before, after)`` for each change from now on."""
        self._handlers.append(handler)

    def _handler(self, resource: Resource) -> Callable[[Object | None, Object | None], None]:
        def changed(old: Object | None, new: Object | None) -> None:
            present = new if new is not None else old
            if present is not None:
                self._changed(Ref(resource, objects.key_of(present)), old, new)

        return changed

    def _changed(self, ref: Ref, old: Object | None, new: Object | None) -> None:
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

    def _drop_dependent(self, uid: str, ref: Ref) -> None:
        members = self.dependents.get(uid, {})
        members.pop(ref, None)
        if not members:
            self.dependents.pop(uid, None)

    def is_namespaced(self, resource: Resource) -> bool:
        """Whether objects of the resource live in namespaces."""
        return resource not in self._cluster_scoped

    @property
    def followed(self) -> list[Resource]:
        """All followed resources."""
        return sorted(self._followed)

    def get(self, ref: Ref) -> Object | None:
        """Return the object as it is known."""
        return self._cluster.informer(ref.resource).objects.get(ref.key)

    async def synced(self) -> None:
        """Return once the built-in resources are known."""
        await self._definitions.synced()
        self.look()
        for resource in built_in_resources():
            if resource in self._followed:
                await self._cluster.informer(resource).synced()
