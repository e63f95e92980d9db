"""A stored object together with its JSON."""

from __future__ import annotations

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import dumped


class Item:
    """An object that never changes again; its JSON is made once, for the disk and for every reader."""

    __slots__ = ("_json", "object", "version")

    def __init__(self, obj: Object, version: int) -> None:
        """``version`` is the object's resourceVersion as a number."""
        self.object, self.version = obj, version
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        """The object as compact JSON."""
        if self._json is None:
            self._json = dumped(self.object)
        return self._json
