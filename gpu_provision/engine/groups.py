"""Live objects in groups, kept current at a cost that goes by what has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from gpu_provision.cluster.watching import News
from gpu_provision.model.cluster import Manifest, ObjectRef

Name = TypeVar("Name", bound=Hashable)


class Groups(Generic[Name]):
    """Objects by a name that each of them has, such as the node of a pod.

    A watch puts another object in the place of one that has changed, and never changes one.

    Attributes:
        upto: Up to where changes have been taken in.
        objects: All of them.
        members: Name -> its objects, in the order in which they were first seen; the same tuple until one changes.
    """

    def __init__(self, name: Callable[[Manifest], Name]) -> None:
        """Begin with nothing."""
        self._name, self.upto = name, -1
        self.objects: dict[ObjectRef, Manifest] = {}
        self.members: dict[Name, tuple[Manifest, ...]] = {}

    def copy(self) -> Groups[Name]:
        """Return groups that go on from here."""
        other = Groups(self._name)
        other.upto, other.objects, other.members = self.upto, dict(self.objects), dict(self.members)
        return other

    def take(self, news: News) -> set[Name]:
        """Take changes in, and return the names of the groups that are no longer as they were."""
        known, self.upto = self.objects, news.upto
        refs = known.keys() | news.objects.keys() if news.is_whole else news.objects
        changed = [ref for ref in refs if known.get(ref) is not news.objects.get(ref)]
        gone = [known.pop(ref) for ref in changed if ref in known]
        new = {ref: each for ref in changed if (each := news.objects.get(ref)) is not None}
        known |= new
        return self._replace(gone, new.values())

    def _replace(self, gone: Collection[Manifest], new: Collection[Manifest]) -> set[Name]:
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
