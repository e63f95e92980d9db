"""The verbs on objects: create, update, patch, apply and delete with the rules of an API server.

Everything that writes goes through here, over HTTP or in process, so both get the same defaults, checks and errors.
Items that come back are the stored ones: whoever wants to change an object copies it first.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import ownership
from gpu_provision.sandbox.apiserver.admission import admit_changed, admit_new, admitted_to_namespace
from gpu_provision.sandbox.apiserver.conversion import served, stored
from gpu_provision.sandbox.apiserver.crds import CustomResources
from gpu_provision.sandbox.apiserver.defaults import set_defaults, set_initial_status
from gpu_provision.sandbox.apiserver.deletion import DeleteOptions, check_preconditions, finished, held, marked
from gpu_provision.sandbox.apiserver.item import Item
from gpu_provision.sandbox.apiserver.metadata import (
    carry_over,
    checked_identity,
    checked_version,
    desired_state,
    start,
)
from gpu_provision.sandbox.apiserver.objects import at, copied
from gpu_provision.sandbox.apiserver.resources import Catalog, ResourceInfo
from gpu_provision.sandbox.apiserver.status import (
    Cause,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    invalid_value,
    not_found,
)
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.apiserver.subresources import restricted
from gpu_provision.sandbox.apiserver.validation import change_causes, name_causes, object_causes

Hook = Callable[[Item | None, Item | None], None]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Who writes, and whether for real."""

    manager: str = "unknown"
    dry_run: bool = False


class Registry:
    """All objects of the cluster behind the rules."""

    def __init__(self, store: Store) -> None:
        """Serve what the store holds, custom resources included."""
        self.store, self.catalog = store, Catalog()
        self._hooks: dict[str, list[Hook]] = {}
        self.custom = CustomResources(self.catalog)
        for item in store.select(CustomResources.STORAGE):
            self.custom.changed(None, item)
        self.on_change(CustomResources.STORAGE, self.custom.changed)

    def on_change(self, storage: str, hook: Hook) -> None:
        """Call ``hook(before, after)`` after every write to a storage."""
        self._hooks.setdefault(storage, []).append(hook)

    def item(self, info: ResourceInfo, name: str, namespace: str = "") -> Item:
        """Return one object as its served version shows it. Raises StatusError 404."""
        return served(self._stored(info, name, namespace), info)

    def _stored(self, info: ResourceInfo, name: str, namespace: str) -> Item:
        item = self.store.get(info.storage, name, namespace)
        if item is None:
            raise not_found(info, name)
        return item

    def create(
        self, info: ResourceInfo, body: Object, namespace: str = "", options: WriteOptions | None = None
    ) -> Item:
        """Create an object from ``body``, which becomes the server's. Raises StatusError."""
        how = options or WriteOptions()
        checked_identity(body, info, namespace)
        if body["metadata"].get("resourceVersion"):
            message = "resourceVersion should not be set on objects to be created"
            raise bad_request(message)
        body["metadata"].pop("managedFields", None)
        types = self.custom.list_types(info)
        return self._create(info, body, how, lambda new: ownership.recorded(None, new, how.manager, schema=types))

    def _create(self, info: ResourceInfo, body: Object, how: WriteOptions, own: Callable[[Object], Object]) -> Item:
        new = stored(body, info)
        admitted_to_namespace(self.store, info, new)
        if info.has_status and not info.custom:
            new.pop("status", None)
        start(new, info)
        self._completed(new, info, admit_new)
        set_initial_status(new, info.storage)
        self._check(new, info)
        name, namespace = new["metadata"]["name"], new["metadata"].get("namespace", "")
        if self.store.get(info.storage, name, namespace):
            raise already_exists(info, name)
        return self._commit(info, None, own(new), how)

    def _completed(self, obj: Object, info: ResourceInfo, admit: Callable[[Store, ResourceInfo, Object], None]) -> None:
        try:
            self.custom.complete(obj, info)
            set_defaults(obj, info.storage)
            admit(self.store, info, obj)
        except (AttributeError, TypeError, KeyError) as error:
            raise _wrong_shape(obj, error) from error

    def _check(self, new: Object, info: ResourceInfo, old: Object | None = None) -> None:
        metadata = new["metadata"]
        try:
            causes = (
                name_causes(metadata["name"], info.storage) if old is None else change_causes(old, new, info.storage)
            )
            causes += object_causes(new, info.storage)
            causes += self.custom.causes(new, info)
        except (AttributeError, TypeError, KeyError) as error:
            raise _wrong_shape(new, error) from error
        if causes:
            raise invalid(info, metadata["name"], causes)

    def update(
        self,
        info: ResourceInfo,
        name: str,
        body: Object,
        namespace: str = "",
        options: WriteOptions | None = None,
        subresource: str = "",
    ) -> Item:
        """Replace an object by ``body``, which becomes the server's. Raises StatusError."""
        how = options or WriteOptions()
        checked_identity(body, info, namespace)
        if body["metadata"].setdefault("name", name) != name:
            message = f"the name of the object ({body['metadata']['name']}) does not match the name on the URL ({name})"
            raise bad_request(message)
        old = self._stored(info, name, namespace)
        given, actual = body["metadata"].get("uid"), old.object["metadata"]["uid"]
        if given and given != actual:
            why = f"Precondition failed: UID in precondition: {given}, UID in object meta: {actual}"
            raise conflict(info, name, why)
        return self._replace(info, old, stored(body, info), how, subresource)

    def change(
        self,
        info: ResourceInfo,
        name: str,
        change: Callable[[Object], Object],
        namespace: str = "",
        options: WriteOptions | None = None,
        subresource: str = "",
    ) -> Item:
        """Replace an object by what ``change`` makes of a copy of it: a patch. Raises StatusError."""
        how = options or WriteOptions()
        old = self._stored(info, name, namespace)
        new = change(copied(served(old, info).object))
        checked_identity(new, info, namespace)
        given = new["metadata"].get("uid")
        if given and given != old.object["metadata"]["uid"]:
            raise invalid(info, name, [invalid_value("metadata.uid", f'"{given}"', "field is immutable")])
        return self._replace(info, old, stored(new, info), how, subresource)

    def _replace(self, info: ResourceInfo, old: Item, body: Object, how: WriteOptions, subresource: str) -> Item:
        if refusal := checked_version(old.object, body, info):
            raise refusal
        if ownership.wants_reset(body):
            body["metadata"]["managedFields"] = []
        else:
            body["metadata"]["managedFields"] = old.object["metadata"].get("managedFields")
        new = self._prepared(info, old, body, subresource)
        if new == old.object:
            return served(old, info)
        types = self.custom.list_types(info)
        owned = ownership.recorded(old.object, new, how.manager, schema=types, subresource=_owner_part(subresource))
        return self._commit(info, old, owned, how)

    def _prepared(self, info: ResourceInfo, old: Item, body: Object, subresource: str) -> Object:
        before = old.object
        new = restricted(before, body, info, subresource)
        carry_over(before, new)
        if not subresource:
            self._completed(new, info, admit_changed)
        for field in ("managedFields", "finalizers", "ownerReferences", "labels", "annotations"):
            if not new["metadata"].get(field):
                new["metadata"].pop(field, None)
        self._check_finalizers(info, before, new)
        self._check(new, info, before)
        _count_generation(info, before, new)
        return new

    @staticmethod
    def _check_finalizers(info: ResourceInfo, old: Object, new: Object) -> None:
        if not old["metadata"].get("deletionTimestamp"):
            return
        added = set(new["metadata"].get("finalizers") or ()) - set(old["metadata"].get("finalizers") or ())
        if added:
            message = f"Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {sorted(added)}"
            raise invalid(info, new["metadata"]["name"], [Cause("FieldValueForbidden", message, "metadata.finalizers")])

    def apply(
        self,
        info: ResourceInfo,
        name: str,
        config: Object,
        namespace: str = "",
        options: WriteOptions | None = None,
        *,
        force: bool = False,
        subresource: str = "",
    ) -> tuple[Item, bool]:
        """Server-side apply; also return whether the object is new. Raises StatusError, 409 on conflicts."""
        how = options or WriteOptions()
        checked_identity(config, info, namespace)
        if config["metadata"].setdefault("name", name) != name:
            message = (
                f"the name of the object ({config['metadata']['name']}) does not match the name on the URL ({name})"
            )
            raise bad_request(message)
        old = self.store.get(info.storage, name, namespace)
        base = served(old, info).object if old else None
        types = self.custom.list_types(info)
        merged = ownership.applied(base, config, how.manager, force=force, subresource=subresource, schema=types)
        if old is None:
            if subresource:
                raise not_found(info, name)
            owned = merged["metadata"].get("managedFields")
            return self._create(info, merged, how, lambda new: ownership.with_fields(new, owned)), True
        if refusal := checked_version(old.object, config, info):
            raise refusal
        new = self._prepared(info, old, stored(copied(merged), info), subresource)
        if ownership.same_but_for_times(new, old.object):
            return served(old, info), False
        return self._commit(info, old, new, how), False

    def _commit(self, info: ResourceInfo, old: Item | None, new: Object, how: WriteOptions) -> Item:
        gone = finished(new, info)
        if how.dry_run:
            return served(Item(new, self.store.version), info)
        if gone and old:
            return served(self._remove(info, Item(new, old.version)), info)
        item = self.store.put(info.storage, new)
        self._tell(info, old, item)
        return served(item, info)

    def _remove(self, info: ResourceInfo, item: Item) -> Item:
        metadata = item.object["metadata"]
        last = self.store.remove(info.storage, metadata["name"], metadata.get("namespace", ""))
        self._tell(info, item, None)
        return last or item

    def _tell(self, info: ResourceInfo, before: Item | None, after: Item | None) -> None:
        for hook in self._hooks.get(info.storage, ()):
            hook(before, after)

    def delete(
        self, info: ResourceInfo, name: str, namespace: str = "", options: DeleteOptions | None = None
    ) -> tuple[Item, bool]:
        """Delete an object; return its last or present state and whether it is gone. Raises StatusError."""
        how = options or DeleteOptions()
        old = self._stored(info, name, namespace)
        check_preconditions(old.object, info, how)
        if info.storage == "/namespaces" and name in ("default", "kube-system", "kube-public"):
            raise StatusError(403, "Forbidden", f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        new = marked(old.object, info, how, datetime.datetime.now(datetime.UTC))
        if not held(new, info):
            return (old if how.dry_run else served(self._remove(info, old), info)), True
        if how.dry_run or new == old.object:
            return served(Item(new, old.version), info), False
        item = self.store.put(info.storage, copied(new))
        self._tell(info, old, item)
        return served(item, info), False


def _owner_part(subresource: str) -> str:
    return "" if subresource in ("binding", "finalize") else subresource


def _count_generation(info: ResourceInfo, old: Object, new: Object) -> None:
    if not info.counts_generations:
        return
    without_status = info.has_status or not info.custom
    if desired_state(old, without_status=without_status) != desired_state(new, without_status=without_status):
        new["metadata"]["generation"] = at(old, "metadata", "generation") or 0
        new["metadata"]["generation"] += 1


def _wrong_shape(obj: Object, error: Exception) -> StatusError:
    kind, version = obj.get("kind"), obj.get("apiVersion")
    return bad_request(
        f'{kind} in version "{version}" cannot be handled as a {kind}: a field has the wrong type: {error}'
    )
