"""A stored object together with its JSON."""

from __future__ import annotations

import marshal

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import dumped


class Item:
    """An object that never changes again; its JSON is made once, for the disk and for every reader."""

    __slots__ = ("_frozen", "_json", "_json_without_kind", "object", "version")

    def __init__(self, obj: Object, version: int) -> None:
        """``version`` is the object's resourceVersion as a number."""
        self.object, self.version = obj, version
        self._json: bytes | None = None
        self._json_without_kind: bytes | None = None
        self._frozen: bytes | None = None

    @property
    def json(self) -> bytes:
        """The object as compact JSON."""
        if self._json is None:
            self._json = dumped(self.object)
        return self._json

    @property
    def json_without_kind(self) -> bytes:
        """The object as an item of a list, which says once what its items are."""
        if self._json_without_kind is None:
            rest = {key: value for key, value in self.object.items() if key not in ("apiVersion", "kind")}
            self._json_without_kind = dumped(rest)
        return self._json_without_kind

    def copy(self) -> Object:
        """Return the object for a caller who may change it.

        Many readers copy the same item, so it is frozen once and thawed for each (three times as fast as a walk).
        """
        if self._frozen is None:
            self._frozen = marshal.dumps(self.object)
        thawed: Object = marshal.loads(self._frozen)  # noqa: S302 - bytes that this line's neighbour has just made
        return thawed
