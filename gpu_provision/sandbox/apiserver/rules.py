"""What an API server makes of an object before it is kept: completed, checked, with the server's own metadata."""

from __future__ import annotations

from collections.abc import Callable

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.admission import admit_changed, admit_new, admitted_to_namespace
from gpu_provision.sandbox.apiserver.crds import CustomResources
from gpu_provision.sandbox.apiserver.defaults import set_defaults, set_initial_status
from gpu_provision.sandbox.apiserver.metadata import carry_over, desired_state, start
from gpu_provision.sandbox.apiserver.objects import at
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import Cause, StatusError, bad_request, invalid
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.apiserver.subresources import restricted
from gpu_provision.sandbox.apiserver.validation import change_causes, name_causes, object_causes

_EMPTY_IS_ABSENT = ("managedFields", "finalizers", "ownerReferences", "labels", "annotations")

_BORN_WITH_STATUS = frozenset({"/nodes"})  # kubelets register with one


class Rules:
    """The rules of one cluster; they look at other objects, such as namespaces and priority classes."""

    def __init__(self, store: Store, custom: CustomResources) -> None:
        """``custom`` knows the schemas of custom resources."""
        self._store, self._custom = store, custom

    def new(self, obj: Object, info: ResourceInfo) -> None:
        """Complete and check a new object in place. Raises StatusError."""
        admitted_to_namespace(self._store, info, obj)
        if info.has_status and info.storage not in _BORN_WITH_STATUS:
            obj.pop("status", None)
        start(obj, info)
        self._complete(obj, info, admit_new)
        set_initial_status(obj, info.storage)
        self._check(obj, info, name_causes(obj["metadata"]["name"], info.storage))

    def changed(self, info: ResourceInfo, old: Object, body: Object, subresource: str) -> Object:
        """Return what ``old`` becomes by a write of ``body`` through a subresource. Raises StatusError."""
        new = restricted(old, body, info, subresource)
        carry_over(old, new)
        if not subresource:
            self._complete(new, info, admit_changed)
        for field in _EMPTY_IS_ABSENT:
            if not new["metadata"].get(field):
                new["metadata"].pop(field, None)
        if subresource != "status" or info.custom:
            self._check(new, info, [*_finalizer_causes(old, new), *self._change_causes(old, new, info)])
        _count_generation(info, old, new)
        return new

    def _complete(self, obj: Object, info: ResourceInfo, admit: Callable[[Store, ResourceInfo, Object], None]) -> None:
        try:
            self._custom.complete(obj, info)
            set_defaults(obj, info.storage)
            admit(self._store, info, obj)
        except (AttributeError, TypeError, KeyError) as error:
            raise _wrong_shape(obj, error) from error

    def _check(self, obj: Object, info: ResourceInfo, causes: list[Cause]) -> None:
        try:
            causes = [*causes, *object_causes(obj, info.storage), *self._custom.causes(obj, info)]
        except (AttributeError, TypeError, KeyError) as error:
            raise _wrong_shape(obj, error) from error
        if causes:
            raise invalid(info, obj["metadata"]["name"], causes)

    @staticmethod
    def _change_causes(old: Object, new: Object, info: ResourceInfo) -> list[Cause]:
        try:
            return change_causes(old, new, info.storage)
        except (AttributeError, TypeError, KeyError) as error:
            raise _wrong_shape(new, error) from error


def _finalizer_causes(old: Object, new: Object) -> list[Cause]:
    if not old["metadata"].get("deletionTimestamp"):
        return []
    added = set(new["metadata"].get("finalizers") or ()) - set(old["metadata"].get("finalizers") or ())
    if not added:
        return []
    names = ", ".join(f'"{name}"' for name in sorted(added))
    message = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{names}}}"
    return [Cause("FieldValueForbidden", f"Forbidden: {message}", "metadata.finalizers")]


def _count_generation(info: ResourceInfo, old: Object, new: Object) -> None:
    if not info.counts_generations:
        return
    without_status = info.has_status or not info.custom
    if desired_state(old, without_status=without_status) != desired_state(new, without_status=without_status):
        new["metadata"]["generation"] = (at(old, "metadata", "generation") or 0) + 1


def _wrong_shape(obj: Object, error: Exception) -> StatusError:
    kind, version = obj.get("kind"), obj.get("apiVersion")
    return bad_request(
        f'{kind} in version "{version}" cannot be handled as a {kind}: a field has the wrong type: {error}'
    )
