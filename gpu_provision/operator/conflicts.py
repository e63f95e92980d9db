"""Conflicts over a stack: overlaps with other stacks, and GitOps tools that declare its resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_provision.components.targets import node_pools
from gpu_provision.kube.observe import node_facts
from gpu_provision.model import codes
from gpu_provision.model.cluster import ClusterFacts, Manifest, NodeFacts
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator.events import EventSink, internal_error_event
from gpu_provision.operator.stack import FINALIZER, KEEP, ON_DELETE, inventory_of, namespace_of, stack_label
from gpu_provision.operator.status import Reason, StackProblem, first_of, internal_error
from gpu_provision.planning.diff import FIELD_MANAGER

_MOST_NAMED = 10
_APART = "delete the younger stack, and create it again with another spec.cluster.namespace"


class StackClaim(NamedTuple):
    """What one stack wants; the older one of two, of RFC 3339 in ``since``, keeps it.

    Attributes:
        nodes: Names of the GPU nodes that it looks after.
        namespace: Where its operands are; their names are the same for every stack.
    """

    since: str
    stack: str
    nodes: frozenset[str]
    namespace: str


def find_overlaps(claims: Iterable[StackClaim]) -> Mapping[str, str]:
    """Return for every stack that has to give way as a whole which stack owns what it wants.

    A stack that gives way owns nothing, so that it hinders no other.
    """
    owners: list[StackClaim] = []
    found: dict[str, str] = {}
    for claim in sorted(claims):
        if overlap := next(filter(None, (_overlap(owner, claim) for owner in owners)), ""):
            found[claim.stack] = overlap
        else:
            owners.append(claim)
    return found


def _overlap(owner: StackClaim, other: StackClaim) -> str:
    if nodes := sorted(owner.nodes & other.nodes):
        return f"stack {owner.stack} owns nodes that {other.stack} wants, too: {first_of(nodes, _MOST_NAMED)}"
    if owner.namespace == other.namespace:
        return f"stack {owner.stack} owns the namespace {owner.namespace}, which {other.stack} wants, too: {_APART}"
    return ""


@dataclass(slots=True)
class OverlapChecker:
    """Compares all stacks of a cluster; what it has read of a stack or a node it reads again when that has changed.

    A stack that is being removed still owns what it had: another one begins when it is gone.

    Attributes:
        take: Receives the traceback of a mistake, once.
    """

    take: EventSink
    _inventories: dict[tuple[str, int], Inventory | None] = field(default_factory=dict)
    _nodes: dict[str, tuple[str, NodeFacts]] = field(default_factory=dict)
    _mistakes: dict[str, StackProblem] = field(default_factory=dict)

    def look(self, stacks: Iterable[Manifest], nodes: Iterable[Manifest]) -> Mapping[str, StackProblem]:
        """Return why stacks may not be worked on, by name."""
        self._nodes = {node["metadata"]["name"]: self._facts(node) for node in nodes}
        facts = ClusterFacts(nodes=tuple(each for _, each in self._nodes.values()))
        known, self._inventories = self._inventories, {}
        wanted: list[StackClaim] = []
        mistakes: dict[str, StackProblem] = {}
        for stack in filter(_owns_something, stacks):
            metadata = stack["metadata"]
            name, version = metadata["name"], (str(metadata["uid"]), int(metadata.get("generation", 0)))
            try:
                inventory = known[version] if version in known else inventory_of(stack)[0]
                wanted += [_claim(stack, inventory, facts)] if inventory else []
                self._inventories[version] = inventory
            except Exception as error:  # noqa: BLE001 - a mistake about one stack is none about the others
                mistakes[name] = internal_error(error)
                if self._mistakes.get(name) != mistakes[name]:
                    self.take(internal_error_event(error, name))
        self._mistakes = mistakes
        return {name: StackProblem(Reason.OVERLAP, why) for name, why in find_overlaps(wanted).items()} | mistakes

    def _facts(self, node: Manifest) -> tuple[str, NodeFacts]:
        version, known = node["metadata"]["resourceVersion"], self._nodes.get(node["metadata"]["name"])
        return known if known and known[0] == version else (version, node_facts(node))


def _owns_something(stack: Manifest) -> bool:
    metadata = stack["metadata"]
    return not metadata.get("deletionTimestamp") or FINALIZER in (metadata.get("finalizers") or ())


def _claim(stack: Manifest, inventory: Inventory, facts: ClusterFacts) -> StackClaim:
    nodes = frozenset(name for name, pool in node_pools(inventory, facts).items() if pool.gpu)
    namespace = namespace_of(stack) or inventory.cluster.namespace
    return StackClaim(stack["metadata"]["creationTimestamp"], stack["metadata"]["name"], nodes, namespace)


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


def managed_by(stack: Manifest) -> str:
    """Return which other tool declares a stack's resource; empty for none that is known."""
    found = (_manager_named(stack, mark) for mark in _MARKS)
    return next(filter(None, found), _manager(stack))


def _manager_named(stack: Manifest, mark: _Mark) -> str:
    values = stack["metadata"].get(mark.place) or {}
    name = str(values.get(mark.key) or "").partition(":")[0]  # a tracking id goes on with the object
    home = values.get(mark.namespace)
    return f"{mark.owner} {f'{home}/' if home else ''}{name}" if name else ""


def _manager(stack: Manifest) -> str:
    """Return the field manager of the spec that is neither gpu-provision nor kubectl."""
    found = (name for name in other_managers(stack) if not name.startswith(_BY_HAND))
    return next((f"the field manager {name}" for name in found), "")


def other_managers(live: Manifest) -> tuple[str, ...]:
    """Return who else than us has set fields of a stack's spec."""
    entries = live["metadata"].get("managedFields") or ()
    found = (entry["manager"] for entry in entries if "f:spec" in (entry.get("fieldsV1") or {}))
    return tuple(sorted({*found} - {FIELD_MANAGER}))


def warn_on_release(stack: Manifest) -> tuple[Finding, ...]:
    """Return the warning that a stack's resource comes back once it is released."""
    return _comes_back(
        stack,
        "a controller looks after the stack again",
        f"annotate it there with {ON_DELETE}: {KEEP}, then take it out there: its being pruned is the release",
    )


def warn_on_destroy(stack: Manifest) -> tuple[Finding, ...]:
    """Return the warning that a stack's resource comes back once the stack is removed."""
    return _comes_back(
        stack, "the controller installs the stack again", "take it out there: its being pruned removes the stack, too"
    )


def warn_on_takeover(stack: Manifest) -> tuple[Finding, ...]:
    """Return the warning that fields of a stack's resource are set back once they are taken over."""
    return _warned(
        stack, "declares it, too, and may set back what is taken over", "the controller follows", "change it there"
    )


def _comes_back(stack: Manifest, consequence: str, fix: str) -> tuple[Finding, ...]:
    return _warned(stack, "declares it, too, so that it may come back", consequence, fix)


def _warned(stack: Manifest, what: str, consequence: str, fix: str) -> tuple[Finding, ...]:
    who = managed_by(stack)
    if not who:
        return ()
    label = stack_label(stack)
    told = {"code": codes.DECLARED_ELSEWHERE, "where": label, "what": f"{who} {what}", "fix": fix}
    return (Finding(**told, consequence=consequence, severity=Severity.WARNING),)
