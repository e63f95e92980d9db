"""Render the labelled manifests of an inventory, or of a selection of it, and find problems of the inventory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from gpu_provision import components
from gpu_provision.components import driver, driver_validation, extra_objects, machine_config, validator
from gpu_provision.components.targets import context
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.model.cluster import ClusterFacts, Manifest, ObjectRef, RenderContext, ref_of
from gpu_provision.model.codes import ABSENT, EXISTENCE_UNKNOWN, PART_ONLY, TOO_MANY_NODES
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import ALL, Inventory, RunSelection
from gpu_provision.model.text import MAX_NODES, join_limited
from gpu_provision.planning.applyset import label_member, parent
from gpu_provision.planning.states import Desired


def prepare(inventory: Inventory, facts: ClusterFacts, part: RunSelection = ALL) -> tuple[RenderContext, Desired]:
    """Return the context and the manifests of every selected component, labelled as members of the stack."""
    known = context(inventory, facts)
    stack, namespace = inventory.name, inventory.cluster.namespace
    marked = {
        component: [
            label_member(manifest, component=component, stack=stack, namespace=namespace) for manifest in manifests
        ]
        for component, manifests in components.render_manifests(known).items()
    }
    members = (ref_of(manifest) for manifests in marked.values() for manifest in manifests)
    applied = (ref for ref in members if ref.kind not in {"Node", "Pod"})
    marked["prerequisites"] = [*marked["prerequisites"], parent(stack, namespace, applied)]
    return limit_to_part(known, marked, part)


def inventory_findings(known: RenderContext) -> tuple[Finding, ...]:
    """Return the findings of a plan about the inventory, nodes and components."""
    return (
        *known.inventory.warnings,
        *_unverified_findings(known),
        *_left_out_findings(known),
        *too_many_nodes_findings(known),
        *_missing_node_findings(known),
        *components.problems(known),
    )


def _unverified_findings(known: RenderContext) -> Iterator[Finding]:
    if known.facts.unverified:
        yield Finding(
            code="GP313",
            what="the API server's certificate is not verified",
            where=known.facts.unverified,
            evidence="insecure-skip-tls-verify: true in the kubeconfig",
            consequence="an attacker on the network can answer in its place, read credentials, and change requests",
            fix="replace insecure-skip-tls-verify by certificate-authority-data, or by tls-server-name if the name "
            "differs",
            severity=Severity.WARNING,
        )


def _missing_node_findings(known: RenderContext) -> Iterator[Finding]:
    for name in [target.name for target in known.targets if target.facts is None and known.facts.version]:
        yield Finding(
            code="GP201",
            what=f"the inventory declares node {name}, but the cluster has no node of this name",
            where=f"node {name}",
            fix="join the machine to the cluster, or correct its name in the inventory (kubectl get nodes)",
        )


MAX_VALUES_LENGTH, MAX_OBJECT_LENGTH = 1024 * 1024, 1536 * 1024
_VALUE, _AROUND_NAMES = 106, 20  # bytes: name and verdict of a validation; quotes, lengths and managedFields
_ROOM = 0.97  # share of the limits that validations may use


def too_many_nodes_findings(known: RenderContext) -> Iterator[Finding]:
    """Yield an error if the record of a stack's validations exceeds the API server's limits of an object."""
    names = [target.name for target in (*known.targets, *known.others)]
    whole = sum(2 * len(name) + _AROUND_NAMES + _VALUE for name in names)
    share = max(len(names) * _VALUE / MAX_VALUES_LENGTH, whole / MAX_OBJECT_LENGTH) / _ROOM
    if share <= 1.0:
        return
    name, fit = known.inventory.name, int(len(names) / share)
    yield Finding(
        code=TOO_MANY_NODES,
        what=f"too many GPU nodes ({len(names)}): validation results exceed the limit of a ConfigMap",
        where=f"ConfigMap {known.namespace}/{name}-validations",
        evidence=f"with names as long as these there is room for {fit} nodes",
        consequence="nothing was written",
        fix="divide the nodes among several clusters: Kubernetes itself is made for 5,000 nodes in each",
    )


class PodReference(NamedTuple):
    """A reference from the pods of an object to another object."""

    ref: ObjectRef
    user: ObjectRef  # the object with the pods, or the pod
    component: str  # of the user
    is_required: bool = True  # whether the pods need it to start; a pull secret is not required


def find_references(desired: Desired) -> tuple[PodReference, ...]:
    """Return the references of pods, without optional ones and without objects of the stack itself."""
    kinds = frozenset(_FIELDS.values())
    made = {ref_of(each) for manifests in desired.values() for each in manifests if each["kind"] in kinds}
    refs_of_pods: list[PodReference] = []
    for component, manifest in ((name, each) for name, items in desired.items() for each in items):
        if manifest["kind"] == "Node" or component == extra_objects.NAME:  # without pods
            continue
        spec, user = manifest.get("spec", {}), ref_of(manifest)
        pod = spec if manifest["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
        named = [(kind, name, True) for kind, name in _required_refs(pod)]
        named += [("Secret", secret["name"], False) for secret in pod.get("imagePullSecrets", ())]
        refs = ((ObjectRef("v1", kind, user.namespace, name), needed) for kind, name, needed in named)
        refs_of_pods += (PodReference(ref, user, component, needed) for ref, needed in refs)
    return tuple(dict.fromkeys(each for each in refs_of_pods if each.ref not in made))


def _required_refs(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    volumes = pod.get("volumes", ())
    projected = (source for volume in volumes for source in volume.get("projected", {}).get("sources", ()))
    containers = (*pod.get("initContainers", ()), *pod.get("containers", ()))
    variables = (variable.get("valueFrom", {}) for each in containers for variable in each.get("env", ()))
    whole = (source for each in containers for source in each.get("envFrom", ()))
    for source in chain(volumes, projected, variables, whole):
        for field, kind in _FIELDS.items():
            named = source.get(field, {})
            if named and not named.get("optional"):
                yield kind, named.get("name") or named["secretName"]


_FIELDS = {
    "configMap": "ConfigMap",
    "configMapRef": "ConfigMap",
    "configMapKeyRef": "ConfigMap",
    "secret": "Secret",
    "secretRef": "Secret",
    "secretKeyRef": "Secret",
}
"""Field of a volume, of a projected source or of an environment -> kind of the object that the field names."""


def missing_findings(
    references: Iterable[PodReference],
    missing: Collection[ObjectRef],
    changing: Collection[ObjectRef],
    namespaces: Collection[str],
) -> Iterator[Finding]:
    """Yield a finding for each object that does not exist: an error where a run would start pods that need it.

    ``changing`` are the objects whose pods a run would start or replace, ``namespaces`` those that exist.
    """
    uses_of: dict[ObjectRef, list[PodReference]] = {}
    for reference in references:
        if reference.ref in missing:
            uses_of.setdefault(reference.ref, []).append(reference)
    for ref, uses in uses_of.items():
        required = [use for use in uses if use.is_required]
        is_error = any(use.user in changing for use in required)
        if is_error:
            consequence = "their pods would not start; nothing is changed as long as it is missing"
        elif required:
            consequence = "pods that run go on without it; a pod that is started again does not start"
        else:
            consequence = "images are pulled without its credentials"
        users = ", ".join(dict.fromkeys(use.component for use in required or uses))
        first = "" if ref.namespace in namespaces else f"kubectl create namespace {ref.namespace}; "
        create = _CREATE[ref.kind, bool(required)].format(name=ref.name)
        yield Finding(
            code=ABSENT,
            what=f"{ref.kind} {ref.name} does not exist, to which the pods of {users} refer",
            where=str(ref),
            consequence=consequence,
            fix=f"create it: {first}kubectl -n {ref.namespace} create {create}; or correct its name in the inventory",
            severity=Severity.ERROR if is_error else Severity.WARNING,
        )


_CREATE = {
    ("ConfigMap", True): "configmap {name} --from-file=FILE",
    ("Secret", True): "secret generic {name} --from-file=FILE",
    ("Secret", False): "secret docker-registry {name} --docker-server=HOST --docker-username=USER",
}
"""Kind, and whether pods need the object to start -> arguments of kubectl create."""


def unread_findings(unread: Collection[ObjectRef]) -> Iterator[Finding]:
    """Yield one warning about objects that the user may not read."""
    if unread:
        yield Finding(
            code=EXISTENCE_UNKNOWN,
            what="objects that pods refer to were not checked: read permission missing",
            where=", ".join(sorted(map(str, unread))),
            consequence="a pod that refers to a missing object does not start",
            fix="grant the roles that gpu-provision rbac prints; they include get for these names",
            severity=Severity.WARNING,
        )


# Components that a selection includes besides the requirements: a replaced driver needs its validation.
_ALSO_REQUIRES = {driver.NAME: (driver_validation.NAME,)}


def select_part(inventory: Inventory, targets: Iterable[str], nodes: Iterable[str]) -> RunSelection:
    """Return the selection of these components with their requirements, and of these nodes; none selects all."""
    requires, wanted = components.requirements(inventory), set[str]()
    left = list(targets)
    while left:
        name = left.pop()
        if name not in wanted:
            wanted.add(name)
            left += (*requires[name], *(needed for needed in _ALSO_REQUIRES.get(name, ()) if needed in requires))
    return RunSelection(components=frozenset(wanted), nodes=frozenset(nodes))


def limit_to_part(known: RenderContext, desired: Desired, part: RunSelection) -> tuple[RenderContext, Desired]:
    """Return the context and manifests of a selection; objects that serve all nodes stay as they are."""
    if part.is_all:
        return known, desired
    context = replace(
        known,
        targets=tuple(target for target in known.targets if part.has_node(target.name)),
        others=tuple(target for target in known.targets if not part.has_node(target.name)),
        selection=part,
    )
    limited = {name: list(_limit_manifests(name, manifests, part)) for name, manifests in desired.items()}
    return context, {name: manifests for name, manifests in limited.items() if manifests or part.has_component(name)}


def _limit_manifests(component: str, manifests: Iterable[Manifest], part: RunSelection) -> Iterator[Manifest]:
    """Yield the selected manifests of a component; the driver's validation needs all of the validator."""
    is_needed = component == validator.NAME and part.has_component(driver_validation.NAME)
    for manifest in manifests if is_needed or part.has_component(component) else ():
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind not in {"Node", "Pod"} or part.has_node(name if kind == "Node" else node_of(manifest)):
            yield manifest


def _left_out_findings(known: RenderContext) -> Iterator[Finding]:
    missing = [name for name in components.needed(known) if not known.selection.has_component(name)]
    left_out = [f"components {', '.join(missing)} (--target)"] if missing else []
    left_out += [f"nodes {', '.join(target.name for target in known.others)} (--limit)"] if known.others else []
    if left_out:
        kept = "nothing of it is changed, removed or validated; objects that serve all nodes are as declared"
        rolled = [target.name for target in known.others if machine_config.is_rolled(target, known)]
        reboots = f"; a MachineConfig reboots all nodes of its pool, also {join_limited(rolled, MAX_NODES)}"
        yield Finding(
            code=PART_ONLY,
            what="a part of the inventory is excluded",
            evidence="; ".join(left_out),
            consequence=f"{kept}{reboots if rolled else ''}",
            fix="run again without --target and --limit",
            severity=Severity.WARNING,
        )
