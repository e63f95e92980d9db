"""From live objects to a situation, incrementally: a node is worked out when something about it changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from gpu_provision.components import COMPONENTS, node_labels
from gpu_provision.components.labels import DEPLOY_DRIVER, PRE_INSTALLED, VALIDATED
from gpu_provision.kube.informer import Mirror, News, Scope
from gpu_provision.kube.observe import NODE, POD, node_facts
from gpu_provision.model.cluster import Kind, Manifest, NodeFacts, ObjectRef, Target
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.applyset import PART_OF, STACK, applyset_id
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.states import Desired, Key, PerNode, Situation, key_of, situation
from gpu_provision.reconcile.manifests import Manifests
from gpu_provision.reconcile.reading import Reading

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


WATCHED = (
    Kind("apps/v1", "DaemonSet"),
    Kind("apps/v1", "Deployment"),
    Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
)
"""Kinds whose objects a run follows."""

# Labels that GPU Feature Discovery, a rollout or validations keep current; no manifest depends on them.
_KEPT_CURRENT = ("cuda.", "gfd.", "gpu.", "gpu-driver-upgrade", "mig.")
_IRRELEVANT = (*(f"nvidia.com/{label}" for label in _KEPT_CURRENT), VALIDATED)
_RELEVANT = ("nvidia.com/gpu.deploy.", "nvidia.com/gpu.present")


def scopes(inventory: Inventory) -> tuple[Scope, ...]:
    """Return what a run follows: nodes, its pods, and its objects that get ready by themselves."""
    members = f"{PART_OF}={applyset_id(inventory.name, inventory.cluster.namespace)}"
    pods = f"{STACK}={inventory.name}"
    return Scope(NODE), Scope(POD, pods), *(Scope(kind, members) for kind in WATCHED)


class Look(NamedTuple):
    """One look; it holds until the next one.

    Attributes:
        seen: The whole stack.
        part: What of it is about nodes that have changed, and about no node; see `View.part`.
        names: The nodes that have changed since the look before, also those that are gone; None for all.
        pods: Of those with nothing else than other pods: the components that these belong to.
    """

    seen: Situation
    part: Situation
    names: frozenset[str] | None
    pods: Mapping[str, Collection[str]]


class View:
    """Looks at the live objects of one run. The cost of a look goes by what has changed since the one before."""

    def __init__(self, reading: Reading) -> None:
        """Start from what was read."""
        facts = reading.context.facts
        self._read, self._context = _without_nodes(reading), reading.context
        self._observed = self._read
        self._manifests = Manifests(reading.context, reading.desired)
        self._upto = {NODE: -1}
        self._relevant = {node.name: _relevant(node) for node in facts.nodes}
        self._versions: dict[str, str] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._targets: dict[str, Target] = {}
        self._prepared: Mapping[str, Target] = {}
        self._host_drivers = dict(facts.host_drivers)
        self._by_key = Groups(key_of)
        self._passed: dict[Key, str] = {}
        self._for_now: dict[str, Manifest] = {}
        self._is_first = True

    @property
    def desired(self) -> Desired:
        """What is desired in the end, as of the last look; a situation has what is desired for now."""
        return self._manifests.desired

    def copy(self, reading: Reading) -> View:
        """Return the view of a run of a reading that was made of what is seen here."""
        other = copy.copy(self)
        kept = ((name, value) for name, value in vars(self).items() if isinstance(value, dict | Groups | Manifests))
        vars(other).update({name: value.copy() for name, value in kept}, _read=_without_nodes(reading))
        return other

    def look(
        self,
        mirror: Mirror,
        members: Mapping[ObjectRef, Manifest],
        passed: Mapping[Key, str],
        again: Iterable[str] = (),
    ) -> Look:
        """Return the situation as it is now.

        Args:
            members: Objects of the stack; of kinds that are followed the mirror's count.
            passed: Validations on record.
            again: Nodes to be looked at although nothing about them has changed.
        """
        nodes, others = self._take_nodes(mirror)
        facts = replace(self._read.facts, host_drivers=self._host_drivers)
        remade = self._manifests.update(facts, self._nodes, others) if others else ()
        pods = self._by_key.take(mirror.since(POD, self._by_key.upto))
        changed = {*again, *nodes, *self._take_passed(passed), *(remade or ())}
        changed |= self._take_targets({*changed, *(node for _, node in pods)})
        is_whole, self._is_first = self._is_first or remade is None, False
        facts = replace(facts, nodes=tuple(self._nodes.values()))
        self._context = replace(self._manifests.context, facts=facts, targets=tuple(self._targets.values()))
        self._observed = replace(
            self._read, facts=facts, members=_live(mirror, members), pods=self._by_key.objects, passed=self._passed
        )
        if is_whole:
            made = self._manifests
            seen = situation(self._context, made.desired, self._observed, self._by_key.members, made.parts)
            self._for_now.clear()
            self._take_for_now(seen, self._targets)
            return Look(seen, seen, None, {})
        with_pods = dict[str, set[str]]()
        for component, node in pods:
            if node and node not in changed:
                with_pods.setdefault(node, set()).add(component)
        names = frozenset(changed.union(with_pods) - {""})
        part = self.part(names)
        self._take_for_now(part, names)
        return Look(self._seen(), part, names, with_pods)

    def part(self, names: Collection[str]) -> Situation:
        """Return what of the last look is about these nodes, and about no node."""
        order, made = sorted(names), self._manifests
        facts = replace(self._context.facts, nodes=tuple(self._nodes[name] for name in order if name in self._nodes))
        targets = tuple(self._targets[name] for name in order if name in self._targets)
        parts = {
            component: PerNode(part.daemonsets, {name: part.single[name] for name in order if name in part.single})
            for component, part in made.parts.items()
        }
        about_them = {name: list(part.single.values()) for name, part in parts.items() if name in made.of_nodes}
        keys = ((component.name, name) for component in COMPONENTS for name in order)
        return situation(
            replace(self._context, facts=facts, targets=targets),
            {**made.desired, **about_them},
            replace(self._observed, facts=facts),
            {key: self._by_key.members[key] for key in keys if key in self._by_key.members},
            parts,
        )

    def _seen(self) -> Situation:
        """Return the whole situation with what of it is for now, which was found out node by node."""
        made, desired, parts = self._manifests, self._manifests.desired, self._manifests.parts
        if self._for_now:
            single = {**parts[node_labels.NAME].single, **self._for_now}
            desired = {**desired, node_labels.NAME: list(single.values())}
            parts = {**parts, node_labels.NAME: PerNode((), single)}
        return Situation(self._context, desired, self._observed, self._by_key.members, made.node_labels, parts)

    def _take_for_now(self, part: Situation, names: Iterable[str]) -> None:
        """Note which nodes have other labels for now than in the end."""
        now = part.parts.get(node_labels.NAME, _NOTHING).single
        in_the_end = self._manifests.parts.get(node_labels.NAME, _NOTHING).single
        for name in names:
            if name in now and now[name] is not in_the_end.get(name):
                self._for_now[name] = now[name]
            else:
                self._for_now.pop(name, None)

    def _take_nodes(self, mirror: Mirror) -> tuple[set[str], set[str]]:
        """Return the nodes that have changed, and those of them on which manifests have to change."""
        self._upto[NODE], objects, is_whole = mirror.since(NODE, self._upto[NODE])
        live = {ref.name: node for ref, node in objects.items()}
        gone = {name for name, node in live.items() if node is None}
        if is_whole:
            gone |= (self._nodes.keys() | self._relevant.keys()) - live.keys()
        count = len(self._nodes)
        changed = {name for name, node in live.items() if node is not None and self._is_other(name, node)}
        if len(self._nodes) > count:
            self._nodes = dict(sorted(self._nodes.items()))
        others = {name for name in changed if self._is_relevant(name)}
        others |= {name for name in gone if self._relevant.pop(name, None) is not None}
        for name in gone:
            self._nodes.pop(name, None)
            self._versions.pop(name, None)
        return changed | gone, others

    def _is_other(self, name: str, node: Manifest) -> bool:
        """Take a node in; say whether what is known of it is not as before."""
        version = node["metadata"]["resourceVersion"]
        if self._versions.get(name) == version:
            return False
        self._versions[name], known, facts = version, self._nodes.get(name), node_facts(node)
        if known == facts:
            return False
        self._believe_the_manager(known.labels if known else {}, facts)
        self._nodes[name] = facts
        return True

    def _is_relevant(self, name: str) -> bool:
        before, self._relevant[name] = self._relevant.get(name), _relevant(self._nodes[name])
        return before != self._relevant[name]

    def _take_passed(self, passed: Mapping[Key, str]) -> set[str]:
        """Return the nodes with another result of a validation on record."""
        if passed == self._passed:
            return set()
        before, self._passed = self._passed, dict(passed)
        return {node for (_, node), _ in before.items() ^ self._passed.items()}

    def _take_targets(self, changed: Iterable[str]) -> set[str]:
        """Return the targets that have changed; all are compared once there are others, or manifests of all."""
        wanted = self._manifests.targets
        is_alike, self._prepared = wanted is self._prepared, wanted
        known, found = self._targets, set[str]()
        if not is_alike:
            self._targets = dict(wanted)  # in this order
        for name in changed if is_alike else wanted:
            if name not in wanted:
                self._targets.pop(name, None)
                continue
            before, now = known.get(name), replace(wanted[name], facts=self._nodes.get(name))
            if before != now:
                found.add(name)
            self._targets[name] = before if before is not None and before == now else now
        return found | (known.keys() - wanted.keys())

    def _believe_the_manager(self, before: Mapping[str, str], node: NodeFacts) -> None:
        """Forget what was read of a host once the driver manager there has found a driver that works.

        It has run the host's nvidia-smi after we looked; to contradict it would start a quarrel without an end.
        """
        if before.get(DEPLOY_DRIVER) == "true" and node.labels.get(DEPLOY_DRIVER) == PRE_INSTALLED:
            self._host_drivers.pop(node.name, None)


_NOTHING = PerNode((), {})


def _without_nodes(reading: Reading) -> Observed:
    """Return what was observed and is not followed; a view has its own copies of the rest, which stay current."""
    facts = replace(reading.context.facts, nodes=())
    return replace(reading.observed, facts=facts, members={}, pods={}, passed={}, names={})


def _live(mirror: Mirror, members: Mapping[ObjectRef, Manifest]) -> dict[ObjectRef, Manifest]:
    """Objects that are followed are as the mirror shows them, so that one that somebody deletes is missed."""
    others = {ref: live for ref, live in members.items() if ref.type not in WATCHED}
    return others | {ref: live for kind in WATCHED for ref, live in mirror.of(kind).items()}


def _relevant(facts: NodeFacts) -> int:
    """Return a hash of what manifests depend on."""
    kept = tuple(
        (key, value)
        for key, value in sorted(facts.labels.items())
        if not key.startswith(_IRRELEVANT) or key.startswith(_RELEVANT)
    )
    return hash((facts.os, facts.container_runtime, facts.distribution, VALIDATED in facts.labels, kept))
