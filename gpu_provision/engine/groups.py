"""Live objects in groups, kept current at a cost that goes by what has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import filterfalse
from typing import Generic, TypeVar

from gpu_provision.model.cluster import Manifest

Name = TypeVar("Name", bound=Hashable)


class Groups(Generic[Name]):
    """Objects by a name that each of them has, such as the node of a pod.

    The objects themselves tell what has changed: a watch puts another one in the place of what has, and never changes
    one. Those that are there are held, so their identities are not given to others.

    Attributes:
        members: Name -> its objects, in the order in which they were first seen; the same tuple until one changes.
    """

    def __init__(self, name: Callable[[Manifest], Name]) -> None:
        """Begin with nothing."""
        self._name = name
        self._seen: dict[int, Manifest] = {}
        self.members: dict[Name, tuple[Manifest, ...]] = {}

    def copy(self) -> Groups[Name]:
        """Return groups that go on from here."""
        other = Groups(self._name)
        other._seen, other.members = self._seen, dict(self.members)
        return other

    def update(self, objects: Iterable[Manifest]) -> set[Name]:
        """Take all objects that there are now, and return the names of the groups that are no longer as they were."""
        there = {id(each): each for each in objects}
        new = [there[key] for key in filterfalse(self._seen.__contains__, there)]
        gone = [self._seen[key] for key in filterfalse(there.__contains__, self._seen)]
        self._seen = there
        return self.replace(gone, new)

    def replace(self, gone: Collection[Manifest], new: Collection[Manifest]) -> set[Name]:
        """Take objects in, some in the place of others, and return the names of the groups that have changed."""
        found: dict[Name, dict[str, Manifest]] = {}
        for name in map(self._name, (*new, *gone)):
            if name not in found:
                found[name] = {each["metadata"]["uid"]: each for each in self.members.pop(name, ())}
        for each in new:
            found[self._name(each)][each["metadata"]["uid"]] = each
        for each in gone:
            group, uid = found[self._name(each)], each["metadata"]["uid"]
            if group[uid] is each:
                del group[uid]
        self.members |= {name: tuple(group.values()) for name, group in found.items() if group}
        return set(found)
