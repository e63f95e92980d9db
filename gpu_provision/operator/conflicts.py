"""Why a stack may not be worked on: others own its nodes, its namespace, or its resource."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_provision.components.targets import node_pools
from gpu_provision.kube.observe import node_facts
from gpu_provision.model.cluster import ClusterFacts, Manifest, NodeFacts
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model import codes
from gpu_provision.operator.events import Take, of_mistake
from gpu_provision.operator.spec_diff import other_managers
from gpu_provision.operator.stack import FINALIZER, KEEP, ON_DELETE, home_of, inventory_of, label_of
from gpu_provision.operator.status import Halt, Reason, mistake


@dataclass(frozen=True, slots=True)
class Claim:
    """What one stack wants.

    Attributes:
        since: When the stack was made, RFC 3339.
        nodes: Names of the GPU nodes that it looks after.
        namespace: Where its operands are; their names are the same for every stack.
    """

    stack: str
    since: str
    nodes: frozenset[str]
    namespace: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """Whom a stack has to give way to, and over what.

    Attributes:
        nodes: Names of nodes that both want.
        namespace: The one that both want; empty if it is about nodes alone.
    """

    owner: str
    nodes: tuple[str, ...]
    namespace: str = ""


def overlaps(claims: Iterable[Claim]) -> Mapping[str, Overlap]:
    """Return for every stack that has to give way as a whole the first one that it has to give way to.

    A stack that gives way owns nothing, so that it hinders nobody.
    """
    owners: list[Claim] = []
    found: dict[str, Overlap] = {}
    for claim in sorted(claims, key=lambda each: (each.since, each.stack)):
        first = next(filter(None, (_overlap(owner, claim) for owner in owners)), None)
        if first:
            found[claim.stack] = first
        else:
            owners.append(claim)
    return found


def _overlap(owner: Claim, other: Claim) -> Overlap | None:
    nodes = tuple(sorted(owner.nodes & other.nodes))
    namespace = owner.namespace if owner.namespace == other.namespace else ""
    return Overlap(owner.stack, nodes, namespace) if nodes or namespace else None


_MOST_NAMED = 10


@dataclass(slots=True)
class Hindrances:
    """Judges all stacks of a cluster at once.

    A stack that is being removed still owns what it had: another one begins when it is gone.

    Attributes:
        take: Receives the traceback of a mistake, once.
    """

    take: Take
    _inventories: dict[tuple[str, int], Inventory | None] = field(default_factory=dict)
    _nodes: dict[str, tuple[str, NodeFacts]] = field(default_factory=dict)
    _mistakes: dict[str, Halt] = field(default_factory=dict)

    def look(self, stacks: Iterable[Manifest], nodes: Iterable[Manifest]) -> Mapping[str, Halt]:
        """Return why stacks may not be worked on, by name."""
        facts = ClusterFacts(nodes=self._facts(nodes))
        known, self._inventories = self._inventories, {}
        wanted: list[Claim] = []
        mistakes: dict[str, Halt] = {}
        for stack in stacks:
            try:
                wanted += self._claims(stack, known, facts)
            except Exception as error:  # noqa: BLE001 - a mistake about one stack is none about the others
                mistakes[stack["metadata"]["name"]] = self._mistake(stack["metadata"]["name"], error)
        self._mistakes = mistakes
        found = {name: Halt(Reason.OVERLAP, _told(name, overlap)) for name, overlap in overlaps(wanted).items()}
        return found | mistakes

    def _claims(
        self, stack: Manifest, known: Mapping[tuple[str, int], Inventory | None], facts: ClusterFacts
    ) -> list[Claim]:
        if not _owns_something(stack):
            return []
        version = _version(stack)
        inventory = known[version] if version in known else inventory_of(stack)[0]
        self._inventories[version] = inventory
        return [_claim(stack, inventory, facts)] if inventory else []

    def _mistake(self, name: str, error: Exception) -> Halt:
        halt = mistake(error)
        if self._mistakes.get(name) != halt:
            self.take(of_mistake(error, name))
        return halt

    def _facts(self, nodes: Iterable[Manifest]) -> tuple[NodeFacts, ...]:
        self._nodes = {node["metadata"]["name"]: self._fact(node["metadata"], node) for node in nodes}
        return tuple(facts for _, facts in self._nodes.values())

    def _fact(self, metadata: Mapping[str, str], node: Manifest) -> tuple[str, NodeFacts]:
        version, known = metadata["resourceVersion"], self._nodes.get(metadata["name"])
        return known if known and known[0] == version else (version, node_facts(node))


def _owns_something(stack: Manifest) -> bool:
    metadata = stack["metadata"]
    return not metadata.get("deletionTimestamp") or FINALIZER in (metadata.get("finalizers") or ())


def _version(stack: Manifest) -> tuple[str, int]:
    return str(stack["metadata"]["uid"]), int(stack["metadata"].get("generation", 0))


def _claim(stack: Manifest, inventory: Inventory, facts: ClusterFacts) -> Claim:
    nodes = frozenset(name for name, pool in node_pools(inventory, facts).items() if pool.gpu)
    metadata = stack["metadata"]
    home = home_of(stack) or inventory.cluster.namespace
    return Claim(metadata["name"], metadata["creationTimestamp"], nodes, home)


def _told(name: str, found: Overlap) -> str:
    if found.nodes:
        return f"stack {found.owner} owns nodes that {name} wants, too: {_named(found.nodes)}"
    return f"stack {found.owner} owns the namespace {found.namespace}, which {name} wants, too: {_APART}"


_APART = "delete the younger stack, and make it anew with another spec.cluster.namespace"


def _named(nodes: Collection[str]) -> str:
    more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
    return f"{', '.join([*nodes][:_MOST_NAMED])}{more}"


_BY_HAND = "kubectl"  # as field managers of its subcommands begin


class _Mark(NamedTuple):
    """How a tool marks what it declares.

    Attributes:
        place: Where in the metadata.
        owner: What the value names.
        namespace: Key of where that is; empty if there is none.
    """

    place: str
    key: str
    owner: str
    namespace: str = ""


_MARKS = (
    _Mark("annotations", "argocd.argoproj.io/tracking-id", "Argo CD's application"),
    _Mark("labels", "argocd.argoproj.io/instance", "Argo CD's application"),
    _Mark(
        "labels",
        "kustomize.toolkit.fluxcd.io/name",
        "Flux's Kustomization",
        "kustomize.toolkit.fluxcd.io/namespace",
    ),
    _Mark("labels", "helm.toolkit.fluxcd.io/name", "Flux's HelmRelease", "helm.toolkit.fluxcd.io/namespace"),
    _Mark("annotations", "meta.helm.sh/release-name", "Helm's release", "meta.helm.sh/release-namespace"),
    _Mark("labels", "app.kubernetes.io/instance", "Argo CD or Helm, as"),
)


def declarer(stack: Manifest) -> str:
    """Return who else declares a stack's resource, as people call it; empty for nobody that is known."""
    found = (_manager_named(stack, mark) for mark in _MARKS)
    return next(filter(None, found), _manager(stack))


def _manager_named(stack: Manifest, mark: _Mark) -> str:
    values = stack["metadata"].get(mark.place) or {}
    name = str(values.get(mark.key) or "").partition(":")[0]  # a tracking id goes on with the object
    home = values.get(mark.namespace)
    return f"{mark.owner} {f'{home}/' if home else ''}{name}" if name else ""


def _manager(stack: Manifest) -> str:
    """Return the field manager of the spec that is neither us nor somebody at a keyboard."""
    found = (name for name in other_managers(stack) if not name.startswith(_BY_HAND))
    return next((f"the field manager {name}" for name in found), "")


def against_release(stack: Manifest) -> tuple[Finding, ...]:
    """Return the warning that a stack's resource comes back once it is released."""
    return _comes_back(
        stack,
        "a controller looks after the stack again",
        f"annotate it there with {ON_DELETE}: {KEEP}, then take it out there: its being pruned is the release",
    )


def against_removal(stack: Manifest) -> tuple[Finding, ...]:
    """Return the warning that a stack's resource comes back once the stack is removed."""
    return _comes_back(
        stack, "the controller installs the stack again", "take it out there: its being pruned removes the stack, too"
    )


def against_taking(stack: Manifest) -> tuple[Finding, ...]:
    """Return the warning that fields of a stack's resource are set back once they are taken over."""
    return _warned(
        stack, "declares it, too, and may set back what is taken over", "the controller follows", "change it there"
    )


def _comes_back(stack: Manifest, consequence: str, fix: str) -> tuple[Finding, ...]:
    return _warned(stack, "declares it, too, so that it may come back", consequence, fix)


def _warned(stack: Manifest, what: str, consequence: str, fix: str) -> tuple[Finding, ...]:
    who = declarer(stack)
    if not who:
        return ()
    label = label_of(stack["metadata"]["name"])
    told = {"code": codes.DECLARED_ELSEWHERE, "where": label, "what": f"{who} {what}", "fix": fix}
    return (Finding(**told, consequence=consequence, severity=Severity.WARNING),)
