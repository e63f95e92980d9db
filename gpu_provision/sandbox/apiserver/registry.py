"""Create, update, patch, apply and delete objects with the rules of an API server.

All writes, over HTTP and in process, use this module, with the same defaults, checks and errors. It returns stored
objects: a caller copies an object before a change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import custom_resources, errors, strategy
from gpu_provision.sandbox.apiserver.fieldmanager import apply_configuration, equal_but_for_times, record_update
from gpu_provision.sandbox.apiserver.resources import Catalog, RequestInfo, ResourceInfo
from gpu_provision.sandbox.apiserver.store import Store, StoredObject
from gpu_provision.sandbox.objects import deep_copy, key_of, timestamp

Hook = Callable[[StoredObject | None, StoredObject | None], None]
_KEPT_NAMESPACES = ("default", "kube-system", "kube-public")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Field manager, dry run and user of a write; the user is empty for controllers in the same process."""

    manager: str = "unknown"
    dry_run: bool = False
    user: str = ""


_DEFAULT = WriteOptions()
Admission = Callable[[Object, WriteOptions], None]
"""Completes a new object in place, or refuses it with a StatusError."""


def to_served(item: StoredObject, info: ResourceInfo) -> StoredObject:
    """Return an item in the version of ``info``; versions of a resource differ only in apiVersion."""
    if item.object["apiVersion"] == info.api_version:
        return item
    return StoredObject({**item.object, "apiVersion": info.api_version}, item.version)


class Registry:
    """All objects of the cluster, with the rules of their kinds."""

    def __init__(self, store: Store) -> None:
        """Serve the objects of the store, including custom resources."""
        self.store, self.catalog = store, Catalog()
        self._hooks: dict[str, list[Hook]] = {}
        self._admissions: dict[str, list[Admission]] = {}
        for item in store.select(custom_resources.DEFINITIONS):
            self._serve_definition(None, item)
        self.on_change(custom_resources.DEFINITIONS, self._serve_definition)

    def _serve_definition(self, before: StoredObject | None, after: StoredObject | None) -> None:
        """Serve the versions of a new or changed definition; stop those of a removed one."""
        if before:
            self.catalog.remove_custom(before.object["spec"]["group"], before.object["spec"]["names"]["plural"])
        if after:
            self.catalog.add(custom_resources.served_versions(after.object))

    def on_change(self, storage: str, hook: Hook) -> None:
        """Register ``hook(before, after)`` for every write to a storage."""
        self._hooks.setdefault(storage, []).append(hook)

    def on_create(self, storage: str, admission: Admission) -> None:
        """Register an admission plugin for new objects of a storage."""
        self._admissions.setdefault(storage, []).append(admission)

    def get(self, target: RequestInfo) -> StoredObject:
        """Return one object in its served version. Raises StatusError 404."""
        return to_served(self._get_stored(target), target.info)

    def _get_stored(self, target: RequestInfo) -> StoredObject:
        item = self.store.get(target.info.storage, target.name, target.namespace)
        if item is None:
            raise errors.not_found(target.info, target.name)
        return item

    def is_missing(self, target: RequestInfo) -> bool:
        """Whether the object does not exist."""
        return self.store.get(target.info.storage, target.name, target.namespace) is None

    def create(self, target: RequestInfo, body: Object, how: WriteOptions = _DEFAULT) -> StoredObject:
        """Create an object from ``body``, which the caller must not use later. Raises StatusError."""
        info = target.info
        strategy.check_identity(body, info, target.namespace)
        if body["metadata"].get("resourceVersion"):
            errors.refuse("resourceVersion should not be set on objects to be created")
        body["metadata"].pop("managedFields", None)
        return self._create(info, body, how, applied=False)

    def _create(self, info: ResourceInfo, new: Object, how: WriteOptions, *, applied: bool) -> StoredObject:
        if self._terminating_definition(info):
            message = "create not allowed while custom resource definition is terminating"
            raise errors.method_not_allowed(message)
        strategy.prepare_new(self.store, new, info)
        for admission in self._admissions.get(info.storage, ()):
            admission(new, how)
        namespace, name = key_of(new)
        if self.store.get(info.storage, name, namespace):
            raise errors.already_exists(info, name)
        if not applied:
            types = custom_resources.object_type(info)
            new = record_update(None, new, manager=how.manager, now=timestamp(), types=types)
        return self._commit(info, None, new, how)

    def update(self, target: RequestInfo, body: Object, how: WriteOptions = _DEFAULT) -> StoredObject:
        """Replace an object by ``body``, which the caller must not use later. Raises StatusError."""
        strategy.check_identity(body, target.info, target.namespace)
        strategy.check_name(body, target.name)
        old = self._get_stored(target)
        uid, actual = body["metadata"].get("uid"), old.object["metadata"]["uid"]
        if uid and uid != actual:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
            raise errors.conflict(target.info, target.name, why)
        return self._replace(target, old, body, how)

    def patch(
        self, target: RequestInfo, change: Callable[[Object], Object], how: WriteOptions = _DEFAULT
    ) -> StoredObject:
        """Replace an object by the result of ``change`` on a copy. Raises StatusError."""
        info, old = target.info, self._get_stored(target)
        new = change(to_served(old, info).copy())
        strategy.check_identity(new, info, target.namespace)
        strategy.check_name(new, target.name)
        uid = new["metadata"].get("uid")
        if uid and uid != old.object["metadata"]["uid"]:
            cause = errors.invalid_value("metadata.uid", f'"{uid}"', "field is immutable")
            raise errors.invalid(info, target.name, [cause])
        return self._replace(target, old, new, how)

    def _replace(self, target: RequestInfo, old: StoredObject, body: Object, how: WriteOptions) -> StoredObject:
        info, part = target.info, target.subresource
        strategy.check_version(old.object, body, info)
        requested, stored = body["metadata"].get("managedFields"), old.object["metadata"].get("managedFields")
        new = strategy.prepare_changed(self.store, info, old.object, body, part)
        managed = stored if requested is None or requested == stored else requested  # the same list compares faster
        if managed is not None:
            new["metadata"]["managedFields"] = managed
        if new == old.object:
            return to_served(old, info)
        part = "" if part in ("binding", "finalize") else part
        types = custom_resources.object_type(info)
        new = record_update(old.object, new, manager=how.manager, now=timestamp(), subresource=part, types=types)
        return self._commit(info, old, new, how)

    def apply(
        self, target: RequestInfo, config: Object, how: WriteOptions = _DEFAULT, *, force: bool = False
    ) -> tuple[StoredObject, bool]:
        """Apply a configuration; also return whether the object is new. Raises StatusError, 409 on conflicts."""
        info, part = target.info, target.subresource
        strategy.check_identity(config, info, target.namespace)
        strategy.check_name(config, target.name)
        old = self.store.get(info.storage, target.name, target.namespace)
        if old is None and (uid := config["metadata"].get("uid")):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise errors.conflict(info, target.name, why)
        live = to_served(old, info).object if old else None
        types = custom_resources.object_type(info)
        merged = apply_configuration(
            live, config, manager=how.manager, force=force, now=timestamp(), subresource=part, types=types
        )
        if old is None:
            if part:
                raise errors.not_found(info, target.name)
            return self._create(info, deep_copy(merged), how, applied=True), True
        strategy.check_version(old.object, config, info)
        new = strategy.prepare_changed(self.store, info, old.object, deep_copy(merged), part)
        if equal_but_for_times(new, old.object):
            return to_served(old, info), False
        return self._commit(info, old, new, how), False

    def delete(self, target: RequestInfo, how: strategy.DeleteOptions | None = None) -> tuple[StoredObject, bool]:
        """Delete an object; return its last or present state and whether it is removed. Raises StatusError."""
        info, options, old = target.info, how or strategy.DeleteOptions(), self._get_stored(target)
        strategy.check_preconditions(old.object, info, options)
        if info.storage == "/namespaces" and target.name in _KEPT_NAMESPACES:
            message = f'namespaces "{target.name}" is forbidden: this namespace may not be deleted'
            raise errors.StatusError(403, "Forbidden", message)
        new = strategy.set_deletion_timestamp(old.object, info, options)
        is_definition = info.storage == custom_resources.DEFINITIONS
        customs = custom_resources.served_versions(old.object)[:1] if is_definition else []
        instances = [RequestInfo(of, *key_of(item.object)) for of in customs for item in self.store.select(of.storage)]
        if instances:
            new = custom_resources.set_terminating(new)
        if not strategy.is_held(new, info):
            return (old if options.dry_run else to_served(self._remove(info, old), info)), True
        if options.dry_run or new == old.object:
            return to_served(StoredObject(new, old.version), info), False
        item = self._put(info, old, deep_copy(new))
        for instance in instances:
            self.delete(instance)
        return to_served(item, info), False

    def _commit(self, info: ResourceInfo, old: StoredObject | None, new: Object, how: WriteOptions) -> StoredObject:
        if how.dry_run:
            return to_served(StoredObject(new, self.store.version), info)
        if old and strategy.can_be_removed(new, info):
            return to_served(self._remove(info, StoredObject(new, old.version)), info)
        return to_served(self._put(info, old, new), info)

    def _put(self, info: ResourceInfo, old: StoredObject | None, new: Object) -> StoredObject:
        item = self.store.put(info.storage, new)
        self._call_hooks(info, old, item)
        return item

    def _remove(self, info: ResourceInfo, item: StoredObject) -> StoredObject:
        namespace, name = key_of(item.object)
        last = self.store.remove(info.storage, name, namespace)
        self._call_hooks(info, item, None)
        if info.custom and (definition := self._terminating_definition(info)):
            self._end_definition(info, definition)
        return last or item

    def _call_hooks(self, info: ResourceInfo, before: StoredObject | None, after: StoredObject | None) -> None:
        for hook in self._hooks.get(info.storage, ()):
            hook(before, after)

    def _terminating_definition(self, info: ResourceInfo) -> StoredObject | None:
        item = self.store.get(custom_resources.DEFINITIONS, info.qualified_name) if info.custom else None
        return item if item and item.object["metadata"].get("deletionTimestamp") else None

    def _end_definition(self, info: ResourceInfo, definition: StoredObject) -> None:
        definitions = self.catalog.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        if definitions is None or self.store.count(info.storage):
            return
        new = custom_resources.with_cleanup_finalizer(definition.object, held=False)
        if strategy.can_be_removed(new, definitions):
            self._remove(definitions, StoredObject(new, definition.version))
        else:
            self._put(definitions, definition, deep_copy(new))
