"""The verbs on objects: create, update, patch, apply and delete with the rules of an API server.

Everything that writes goes through here, over HTTP or in process, so both get the same defaults, checks and errors.
Items that come back are the stored ones: to change an object, copy it first.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import ownership
from gpu_provision.sandbox.apiserver.admission import Rules
from gpu_provision.sandbox.apiserver.conversion import served, stored
from gpu_provision.sandbox.apiserver.custom_resources import (
    CustomResources,
    cleaned_up,
    infos_of,
    terminating,
)
from gpu_provision.sandbox.apiserver.deletion import DeleteOptions, check_preconditions, finished, held, marked
from gpu_provision.sandbox.apiserver.metadata import checked_identity, checked_name, checked_version
from gpu_provision.sandbox.apiserver.objects import copied
from gpu_provision.sandbox.apiserver.resources import Catalog, ResourceInfo
from gpu_provision.sandbox.apiserver.status import (
    StatusError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    invalid_value,
    method_not_allowed,
    not_found,
)
from gpu_provision.sandbox.apiserver.store import Item, Store
from gpu_provision.sandbox.apiserver.targets import Target

Hook = Callable[[Item | None, Item | None], None]
_KEPT_NAMESPACES = ("default", "kube-system", "kube-public")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Who writes, and whether for real."""

    manager: str = "unknown"
    dry_run: bool = False


_NOBODY = WriteOptions()


class Registry:
    """All objects of the cluster behind the rules."""

    def __init__(self, store: Store) -> None:
        """Serve what the store holds, custom resources included."""
        self.store, self.catalog = store, Catalog()
        self._hooks: dict[str, list[Hook]] = {}
        self.custom = CustomResources(self.catalog)
        self._rules = Rules(store, self.custom)
        for item in store.select(CustomResources.STORAGE):
            self.custom.changed(None, item)
        self.on_change(CustomResources.STORAGE, self.custom.changed)

    def on_change(self, storage: str, hook: Hook) -> None:
        """Call ``hook(before, after)`` after every write to a storage."""
        self._hooks.setdefault(storage, []).append(hook)

    def item(self, target: Target) -> Item:
        """Return one object as its served version shows it. Raises StatusError 404."""
        return served(self._stored(target), target.info)

    def is_missing(self, target: Target) -> bool:
        """Say whether there is no such object."""
        return self.store.get(target.info.storage, target.name, target.namespace) is None

    def _stored(self, target: Target) -> Item:
        item = self.store.get(target.info.storage, target.name, target.namespace)
        if item is None:
            raise not_found(target.info, target.name)
        return item

    def create(self, target: Target, body: Object, how: WriteOptions = _NOBODY) -> Item:
        """Create an object from ``body``, which becomes the server's. Raises StatusError."""
        info = target.info
        checked_identity(body, info, target.namespace)
        if body["metadata"].get("resourceVersion"):
            message = "resourceVersion should not be set on objects to be created"
            raise bad_request(message)
        body["metadata"].pop("managedFields", None)
        types = self.custom.list_types(info)
        return self._create(info, body, how, lambda new: ownership.recorded(None, new, how.manager, schema=types))

    def _create(self, info: ResourceInfo, body: Object, how: WriteOptions, own: Callable[[Object], Object]) -> Item:
        new = stored(body, info)
        self._check_that_it_stays(info)
        self._rules.new(new, info)
        name, namespace = new["metadata"]["name"], new["metadata"].get("namespace", "")
        if self.store.get(info.storage, name, namespace):
            raise already_exists(info, name)
        return self._commit(info, None, own(new), how)

    def update(self, target: Target, body: Object, how: WriteOptions = _NOBODY) -> Item:
        """Replace an object by ``body``, which becomes the server's. Raises StatusError."""
        checked_identity(body, target.info, target.namespace)
        checked_name(body, target.name)
        old = self._stored(target)
        given, actual = body["metadata"].get("uid"), old.object["metadata"]["uid"]
        if given and given != actual:
            why = f"Precondition failed: UID in precondition: {given}, UID in object meta: {actual}"
            raise conflict(target.info, target.name, why)
        return self._replace(target, old, stored(body, target.info), how)

    def change(self, target: Target, change: Callable[[Object], Object], how: WriteOptions = _NOBODY) -> Item:
        """Replace an object by what ``change`` makes of a copy of it: a patch. Raises StatusError."""
        info = target.info
        old = self._stored(target)
        new = change(served(old, info).copy())
        checked_identity(new, info, target.namespace)
        checked_name(new, target.name)
        given = new["metadata"].get("uid")
        if given and given != old.object["metadata"]["uid"]:
            raise invalid(info, target.name, [invalid_value("metadata.uid", f'"{given}"', "field is immutable")])
        return self._replace(target, old, stored(new, info), how)

    def _replace(self, target: Target, old: Item, body: Object, how: WriteOptions) -> Item:
        info, part = target.info, target.subresource
        if refusal := checked_version(old.object, body, info):
            raise refusal
        reset = ownership.wants_reset(body)
        body["metadata"]["managedFields"] = [] if reset else ownership.requested(body, old.object)
        new = self._rules.changed(info, old.object, body, part)
        if reset:
            new["metadata"]["managedFields"] = []
        if new == old.object:
            return served(old, info)
        types = self.custom.list_types(info)
        owned = ownership.recorded(old.object, new, how.manager, schema=types, subresource=_owner_part(part))
        return self._commit(info, old, owned, how)

    def apply(
        self, target: Target, config: Object, how: WriteOptions = _NOBODY, *, force: bool = False
    ) -> tuple[Item, bool]:
        """Server-side apply; also return whether the object is new. Raises StatusError, 409 on conflicts."""
        info, part = target.info, target.subresource
        checked_identity(config, info, target.namespace)
        checked_name(config, target.name)
        old = self.store.get(info.storage, target.name, target.namespace)
        if old is None and (given := config["metadata"].get("uid")):
            why = f"uid mismatch: the provided object specified uid {given}, and no existing object was found"
            raise conflict(info, target.name, why)
        base = served(old, info).object if old else None
        types = self.custom.list_types(info)
        merged = ownership.applied(base, config, how.manager, force=force, subresource=part, schema=types)
        if old is None:
            if part:
                raise not_found(info, target.name)
            owned = merged["metadata"].get("managedFields")
            return self._create(info, copied(merged), how, lambda new: ownership.with_fields(new, owned)), True
        if refusal := checked_version(old.object, config, info):
            raise refusal
        new = self._rules.changed(info, old.object, stored(copied(merged), info), part)
        if ownership.same_but_for_times(new, old.object):
            return served(old, info), False
        return self._commit(info, old, new, how), False

    def _commit(self, info: ResourceInfo, old: Item | None, new: Object, how: WriteOptions) -> Item:
        if how.dry_run:
            return served(Item(new, self.store.version), info)
        if old and finished(new, info):
            return served(self._remove(info, Item(new, old.version)), info)
        item = self.store.put(info.storage, new)
        self._tell(info, old, item)
        return served(item, info)

    def _remove(self, info: ResourceInfo, item: Item) -> Item:
        metadata = item.object["metadata"]
        last = self.store.remove(info.storage, metadata["name"], metadata.get("namespace", ""))
        self._tell(info, item, None)
        if info.custom:
            self._end_definition(info)
        return last or item

    def _instances(self, definition: Object) -> list[Target]:
        """Name the objects of a custom resource."""
        return [
            Target(info, item.object["metadata"].get("namespace", ""), item.object["metadata"]["name"])
            for info in infos_of(definition)[:1]
            for item in self.store.select(info.storage)
        ]

    def _definition(self, info: ResourceInfo) -> Item | None:
        """Return the definition of a custom resource if that is being deleted."""
        item = self.store.get(CustomResources.STORAGE, info.qualified) if info.custom else None
        return item if item and item.object["metadata"].get("deletionTimestamp") else None

    def _check_that_it_stays(self, info: ResourceInfo) -> None:
        """Refuse (405) new objects of a custom resource that is going."""
        if self._definition(info):
            message = "create not allowed while custom resource definition is terminating"
            raise method_not_allowed(message)

    def _end_definition(self, info: ResourceInfo) -> None:
        """Let a definition go with the last of its objects."""
        item = self._definition(info)
        definitions = self.catalog.of_storage(CustomResources.STORAGE)
        if item is None or definitions is None or self.store.count(info.storage):
            return
        new = cleaned_up(item.object)
        if finished(new, definitions):
            self._remove(definitions, Item(new, item.version))
        else:
            self._tell(definitions, item, self.store.put(definitions.storage, copied(new)))

    def _tell(self, info: ResourceInfo, before: Item | None, after: Item | None) -> None:
        for hook in self._hooks.get(info.storage, ()):
            hook(before, after)

    def delete(self, target: Target, how: DeleteOptions | None = None) -> tuple[Item, bool]:
        """Delete an object; return its last or present state and whether it is gone. Raises StatusError."""
        info, options = target.info, how or DeleteOptions()
        old = self._stored(target)
        check_preconditions(old.object, info, options)
        if info.storage == "/namespaces" and target.name in _KEPT_NAMESPACES:
            message = f'namespaces "{target.name}" is forbidden: this namespace may not be deleted'
            raise StatusError(403, "Forbidden", message)
        new = marked(old.object, info, options, dt.datetime.now(dt.UTC))
        instances = self._instances(old.object) if info.storage == CustomResources.STORAGE else []
        if instances:
            new = terminating(new)
        if not held(new, info):
            return (old if options.dry_run else served(self._remove(info, old), info)), True
        if options.dry_run or new == old.object:
            return served(Item(new, old.version), info), False
        item = self.store.put(info.storage, copied(new))
        self._tell(info, old, item)
        for instance in instances:
            self.delete(instance)
        return served(item, info), False


def _owner_part(subresource: str) -> str:
    return "" if subresource in ("binding", "finalize") else subresource
