"""From an inventory and what is known of a cluster to marked manifests, and the problems on the way."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpu_provision import components
from gpu_provision.components.targets import context
from gpu_provision.model.cluster import ClusterFacts, Context, Manifest, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import ALL, Inventory, RunSelection
from gpu_provision.planning.applyset import member, parent
from gpu_provision.planning.codes import TOO_MANY_NODES
from gpu_provision.planning.scope import left_out, narrowed
from gpu_provision.planning.states import Desired


def prepare(inventory: Inventory, facts: ClusterFacts, part: RunSelection = ALL) -> tuple[Context, Desired]:
    """Return the context and the manifests of every component of a part, marked as members of the stack."""
    known = context(inventory, facts)
    return narrowed(known, _marked(inventory, components.desired(known)), part)


def prepare_of_nodes(known: Context, names: Collection[str], part: RunSelection = ALL) -> Desired:
    """Return the manifests of components all of whose manifests are about one node each, marked as members."""
    made = _members(known.inventory, components.desired(known, names))
    return narrowed(known, made, part)[1]


def _members(inventory: Inventory, desired: Desired) -> dict[str, list[Manifest]]:
    stack, namespace = inventory.name, inventory.cluster.namespace
    return {
        component: [member(manifest, component=component, stack=stack, namespace=namespace) for manifest in manifests]
        for component, manifests in desired.items()
    }


def _marked(inventory: Inventory, desired: Desired) -> Desired:
    stack, namespace = inventory.name, inventory.cluster.namespace
    marked = _members(inventory, desired)
    members = (ref_of(manifest) for manifests in marked.values() for manifest in manifests)
    applied = (ref for ref in members if ref.kind not in {"Node", "Pod"})
    marked["prerequisites"] = [*marked["prerequisites"], parent(stack, namespace, applied)]
    return marked


def findings(known: Context) -> tuple[Finding, ...]:
    """Return what a reader of a plan should know about the inventory, nodes and components."""
    names = components.requirements(known.inventory)
    return (
        *known.inventory.warnings,
        *_unverified(known),
        *left_out(known, names),
        *too_many_nodes(known),
        *_missing_nodes(known),
        *components.problems(known),
    )


def _unverified(known: Context) -> tuple[Finding, ...]:
    if not known.facts.unverified:
        return ()
    warning = Finding(
        code="GP313",
        what="the API server's certificate is not verified",
        where=known.facts.unverified,
        evidence="insecure-skip-tls-verify: true in the kubeconfig",
        consequence="an attacker on the network can answer in its place, read credentials, and change requests",
        fix="replace insecure-skip-tls-verify by certificate-authority-data, or by tls-server-name if the name differs",
        severity=Severity.WARNING,
    )
    return (warning,)


def _missing_nodes(known: Context) -> tuple[Finding, ...]:
    if not known.facts.version:
        return ()
    return tuple(
        Finding(
            code="GP201",
            what=f"the inventory declares node {target.name}, but the cluster has no node of this name",
            where=f"node {target.name}",
            fix="join the machine to the cluster, or correct its name in the inventory (kubectl get nodes)",
        )
        for target in known.targets
        if target.facts is None
    )


MOST_OF_VALUES, MOST_OF_OBJECT = 1024 * 1024, 1536 * 1024
_VALUE, _AROUND_NAMES = 106, 20  # bytes: name and verdict of a validation; quotes, lengths and the book's marks
_ROOM = 0.97  # for what else is in the object


def too_many_nodes(known: Context) -> Iterator[Finding]:
    """Yield that the record of a stack's validations would not fit: the API server would refuse it in mid-run."""
    names = [target.name for target in (*known.targets, *known.others)]
    whole = sum(2 * len(name) + _AROUND_NAMES + _VALUE for name in names)
    share = max(len(names) * _VALUE / MOST_OF_VALUES, whole / MOST_OF_OBJECT) / _ROOM
    if share <= 1.0:
        return
    name, fit = known.inventory.name, int(len(names) / share)
    yield Finding(
        code=TOO_MANY_NODES,
        what=f"the stack has {len(names)} GPU nodes, and what passed on them fits in no ConfigMap",
        where=f"ConfigMap {known.namespace}/{name}-validations",
        evidence=f"with names as long as these there is room for {fit} nodes",
        consequence="nothing was written",
        fix="divide the nodes among several clusters: Kubernetes itself is made for 5,000 nodes in each",
    )
