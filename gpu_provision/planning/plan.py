"""Compare desired and observed state: the changes of a run, and their effects on running pods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from gpu_provision.components import labels, machine_config, mig_manager, nfd, node_labels
from gpu_provision.components.gpu_resources import has_geometry_by_plain_name
from gpu_provision.components.labels import DIGEST
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef, ObservedState, RenderContext, Target, ref_of
from gpu_provision.model.findings import Finding
from gpu_provision.model.plan import Action, Change, FieldChange, Plan
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning import verdicts
from gpu_provision.planning.applyset import component_of, digest_of, is_owned_by, matches_node
from gpu_provision.planning.diff import changes_between, differences, owned_keys, path_of
from gpu_provision.planning.machine_configs import possible_configs
from gpu_provision.planning.prune import deletions, emptied_daemonsets, superseded_pod_changes
from gpu_provision.planning.states import (
    LABELS_PENDING,
    NO_NODE,
    ClusterState,
    ComponentNode,
    Desired,
    cluster_state,
    evaluate_states,
    shared_problem,
    vector_add_of,
)
from gpu_provision.planning.upgrades import (
    DRIVER,
    KEPT_UNTIL_DELETED,
    NO_DRIVER_RESTART,
    OUTDATED,
    has_installed,
    is_kept,
    is_rolled_out,
    waits_for_deletion,
)
from gpu_provision.planning.verdicts import NEVER_RUN, RUNS_IN, VALIDATIONS, NodePatch, node_patch

_PER_NODE = frozenset({"Node", "Pod"})


def plan(context: RenderContext, desired: Desired, observed: ObservedState, findings: tuple[Finding, ...] = ()) -> Plan:
    """Return all changes, in dependency order; deletions come last."""
    seen = cluster_state(context, desired, observed)
    return plan_state(seen, evaluate_states(seen), findings)


def plan_state(
    seen: ClusterState, known: Mapping[ComponentNode, NodeState], findings: tuple[Finding, ...] = ()
) -> Plan:
    """Return the plan for an observed state. ``known``: the states of its components."""
    inventory = seen.context.inventory
    objects = tuple(
        change
        for component, manifests in seen.desired.items()
        for manifest in manifests
        if manifest["kind"] not in _PER_NODE
        for change in object_change(component, manifest, seen)
    )
    nodes = tuple(_node_changes(seen, known))
    moving = {change.ref.name for change in nodes if change.nodes}
    validations = tuple(_validation_changes(seen, known, moving))
    objects += tuple(_possible_configs(seen, known))
    changes = [*objects, *pod_changes(seen), *nodes, *validations]
    changes += _wait_changes(seen, known, {change.component for change in objects})
    changes += (*deletions(seen), *emptied_daemonsets(seen, moving))
    changes += superseded_pod_changes(seen, {key_of_pod(change) for change in validations})
    return Plan(
        inventory=inventory.name,
        release=inventory.release,
        cluster=seen.observed.cluster,
        components=tuple(seen.desired),
        changes=sort_changes([*changes, *label_withdrawals(changes, seen)], tuple(seen.desired)),
        findings=findings,
    )


def _possible_configs(seen: ClusterState, known: Mapping[ComponentNode, NodeState]) -> Iterator[Change]:
    """Yield the MachineConfigs that a run may make once Node Feature Discovery has found out which nodes have a GPU."""
    discovery = known.get((nfd.NAME, ""))
    if machine_config.NAME not in seen.desired or discovery is None or discovery.state is State.READY:
        return
    made = {ref_of(each) for each in seen.desired[machine_config.NAME]}
    for manifest in possible_configs(seen.context):
        if (ref := ref_of(manifest)) not in made:
            yield Change(
                component=machine_config.NAME,
                action=Action.CREATE,
                ref=ref,
                effects=machine_config.reboot_effects(manifest, seen.context.openshift),
                certain=False,
            )


def sort_changes(changes: Iterable[Change], components: Sequence[str]) -> tuple[Change, ...]:
    """Return changes in the order of their components; deletions come last, in the given order."""
    places = {component: place for place, component in enumerate(components)}
    last = len(places)
    return tuple(sorted(changes, key=lambda each: last if each.action is Action.DELETE else places[each.component]))


def object_change(component: str, manifest: Manifest, seen: ClusterState) -> Iterator[Change]:
    """Yield the change of one object to its declared state, if it differs."""
    ref = ref_of(manifest)
    live = seen.observed.members.get(ref)
    if live is None:
        effects = machine_config.reboot_effects(manifest, seen.context.openshift)
        yield Change(component=component, action=Action.CREATE, ref=ref, effects=effects, manifest=manifest)
    elif fields := differences(manifest, live):
        change = Change(component=component, action=Action.UPDATE, ref=ref, fields=fields, manifest=manifest)
        yield with_effects(change, seen)


def with_effects(change: Change, seen: ClusterState) -> Change:
    """Return an update with its effects on running pods: the nodes where pods restart, and remarks.

    A driver restarts only for another installation.
    """
    manifest = change.manifest
    reboots = machine_config.reboot_effects(manifest, seen.context.openshift) if manifest else ()
    if reboots and any(each.path.startswith("spec") for each in change.fields):
        return replace(change, nodes=(), effects=reboots)
    if manifest is None or not any(each.path.startswith(_RESTARTING) for each in change.fields):
        return replace(change, nodes=(), effects=())
    affected = [*_pods_of(manifest, seen)]
    if affected and waits_for_deletion(manifest):
        return replace(change, nodes=(), effects=(KEPT_UNTIL_DELETED,))
    if not any(each.path.startswith("spec.template") for each in change.fields):  # another way of replacing pods
        content = digest_of(manifest["spec"]["template"])
        affected = [(node, pod) for node, pod in affected if digest_of(pod) != content]
    if not affected or not is_rolled_out(manifest):
        return replace(change, nodes=_sort_names(node for node, _ in affected), effects=())
    outdated = _sort_names(node for node, pod in affected if not has_installed(pod, manifest))
    return replace(change, nodes=outdated, effects=() if outdated else (NO_DRIVER_RESTART,))


_RESTARTING = ("spec.template", "spec.updateStrategy")
"""Beginnings of the fields of a workload by which its pods restart."""


def _pods_of(manifest: Manifest, seen: ClusterState) -> Iterator[tuple[str, Manifest]]:
    component, is_daemon = component_of(manifest), manifest["kind"] == "DaemonSet"
    facts = {node.name: node.labels for node in seen.observed.facts.nodes} if is_daemon else {}
    for (name, node), pods in seen.pods.items():
        if name == component:
            stays = not is_daemon or matches_node(manifest, {**facts.get(node, {}), **seen.node_labels.get(node, {})})
            yield from ((node, pod) for pod in pods if stays and _is_owned_by(pod, manifest))


def _sort_names(nodes: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(nodes)))


def _is_owned_by(pod: Manifest, manifest: Manifest) -> bool:
    name, owners = manifest["metadata"]["name"], pod["metadata"].get("ownerReferences", ())
    of_replica_sets = {each["name"].rpartition("-")[0] for each in owners if each["kind"] == "ReplicaSet"}
    return name in of_replica_sets.union(each["name"] for each in owners)


def _node_changes(seen: ClusterState, known: Mapping[ComponentNode, NodeState]) -> Iterator[Change]:
    facts = {node.name: node for node in seen.observed.facts.nodes}
    falling = {target.name: target.pool for target in seen.context.targets if target.pool.takes_any_gpu}
    # Nodes that keep their driver keep the label of their validation.
    put_off = {key for key, each in known.items() if key[0] == verdicts.STARTUP_TAINT and each.state is State.READY}
    managers = (each for each in seen.desired.get(mig_manager.NAME, ()) if each["kind"] == "DaemonSet")
    mig_targets = seen.context.targets if any(not waits_for_deletion(each) for each in managers) else ()
    renamed = {each.name for each in mig_targets if has_geometry_by_plain_name(each, seen.context.inventory)}
    for component, manifests in seen.desired.items():
        for manifest in (manifest for manifest in manifests if manifest["kind"] == "Node"):
            name = manifest["metadata"]["name"]
            node = facts.get(name) or (NodeFacts(name=name) if _is_offline(seen) else None)
            if node is None or (component, name) in put_off:
                continue
            write = node_patch(manifest, node, seen.context.inventory)
            if component == node_labels.NAME and name in renamed:  # the label comes once the MIG manager knows its name
                config = seen.node_labels[name][labels.MIG_CONFIG]
                write = write._replace(labels={**write.labels, labels.MIG_CONFIG: config})
            if not write.is_empty:
                change = node_change(component, manifest, node, write, seen)
                if name in falling and labels.INVENTORY in write.labels:
                    effect = f"{name} falls to the pool {falling[name].name}, for any GPUs"
                    change = replace(change, effects=(*change.effects, effect))
                yield change


def _is_offline(seen: ClusterState) -> bool:
    return not seen.observed.facts.version


def node_change(component: str, manifest: Manifest, node: NodeFacts, write: NodePatch, seen: ClusterState) -> Change:
    """Return the change that writes labels of a node, and removes its startup taint."""
    fields = tuple(
        FieldChange(label_path(key), node.labels.get(key), value) for key, value in sorted(write.labels.items())
    )
    if write.removes_taint:
        taints = (taint.get("effect", "") for taint in node.taints if taint.get("key") == labels.NOT_VALIDATED)
        fields += (FieldChange(f"spec.taints[{labels.NOT_VALIDATED}]", next(taints, ""), None),)
    # The node's pods restart if another DaemonSet starts its driver.
    moves = write.labels.get(labels.DRIVER_GROUP) and labels.DRIVER_GROUP in node.labels
    effects: tuple[str, ...] = ()
    if labels.HOST_DRIVER in write.labels:  # the node changes to a host driver, or back to the container
        version = write.labels[labels.HOST_DRIVER]
        effects = (f"host driver {version} on {node.name}" if version else f"driver container on {node.name}",)
    return Change(
        component=component,
        action=Action.UPDATE,
        ref=ref_of(manifest),
        fields=fields,
        nodes=(node.name,) if moves and seen.pods.get((DRIVER, node.name)) else (),
        effects=effects,
        certain=labels.has_nfd_labels(node.labels),
        manifest=manifest,
    )


@lru_cache(1024)
def label_path(key: str) -> str:
    """Return the path of a label in a plan."""
    return path_of("metadata", "labels", key)


def _validation_changes(
    seen: ClusterState, known: Mapping[ComponentNode, NodeState], moving: Collection[str]
) -> Iterator[Change]:
    for component in filter(VALIDATIONS.__contains__, seen.desired):
        for target in seen.context.targets:
            state = known.get((component, target.name))
            if state is None or (state.reason == NO_NODE and not _is_offline(seen)):
                continue
            # A passed validation runs again where controllers replace pods that it depends on.
            below = (known.get((name, target.name)) for name in VALIDATIONS[component] if name != DRIVER)
            is_undone = not is_kept(known.get((DRIVER, target.name))) and any(
                other is not None and other.reason == OUTDATED for other in below
            )
            if state.state is not State.READY:
                reason = "" if state.reason in {NO_NODE, NEVER_RUN} else state.reason
                yield validation_change(component, target, seen, reason)
            elif target.name in moving or is_undone:
                yield validation_change(component, target, seen)


def validation_change(component: str, target: Target, seen: ClusterState, reason: str = "") -> Change:
    """Return the change that runs a validation."""
    effects = (f"runs vectorAdd on {target.name}", *filter(None, (reason,)))
    part = seen.parts[RUNS_IN[component]]
    manifest = part.single.get(target.name)
    if manifest is None:  # the DaemonSet's pod on the node, or a placeholder for a future one
        wanted, owner = vector_add_of(component, target, seen), part.daemonsets[0]["metadata"]
        name = wanted.pod["metadata"]["name"] if wanted and wanted.pod else f"{owner['name']}-{target.name}"
        metadata = {"name": name, "namespace": owner["namespace"]}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": target.name}}
    return Change(component=component, action=Action.RUN, ref=ref_of(manifest), effects=effects, manifest=manifest)


def key_of_pod(change: Change) -> ComponentNode:
    """Return component and node of a change to one pod."""
    return change.component, pod_view.node_of(change.manifest) if change.manifest else ""


def label_withdrawals(changes: Iterable[Change], seen: ClusterState) -> Iterator[Change]:
    """Yield a change for each node that loses the label of its validation until the validations have passed."""
    known = tuple(changes)
    running = {key_of_pod(change)[1] for change in known if change.action is Action.RUN}
    written = {change.ref.name for change in known if change.ref.kind == "Node"}
    single = seen.parts[verdicts.STARTUP_TAINT].single if verdicts.STARTUP_TAINT in seen.parts else {}
    for target in seen.context.targets:
        is_labelled = target.facts is not None and labels.VALIDATED in target.facts.labels
        if is_labelled and target.name in running - written and target.name in single:
            name, manifest = verdicts.STARTUP_TAINT, single[target.name]
            effects = (f"{labels.VALIDATED} goes until the validations have passed on {target.name}",)
            yield Change(component=name, action=Action.UPDATE, ref=ref_of(manifest), effects=effects, manifest=manifest)


def _wait_changes(
    seen: ClusterState, known: Mapping[ComponentNode, NodeState], changing: Collection[str]
) -> Iterator[Change]:
    nodes: dict[tuple[str, ObjectRef, str], list[str]] = {}
    members, wanted = seen.observed.members, {name: map(ref_of, items) for name, items in seen.desired.items()}
    lacking = {name for name, refs in wanted.items() if any(r.kind not in _PER_NODE and r not in members for r in refs)}
    for (component, node), state in known.items():
        if state.state is State.READY or state.reason == NO_NODE or component in lacking:
            continue
        if state.reason == OUTDATED and component in changing:  # the change already names the pods that restart
            continue
        ref = _awaited_ref(component, node, seen)
        lacks_gpu = component == "node_labels" and state.state is State.PROGRESSING and state.reason != LABELS_PENDING
        if ref in seen.observed.members or lacks_gpu:
            nodes.setdefault((component, ref, state.reason), []).append(node)
    for (component, ref, reason), found in nodes.items():
        where = _sort_names(filter(None, found))
        yield Change(component=component, action=Action.WAIT, ref=ref, nodes=where, effects=(reason,))


def _awaited_ref(component: str, node: str, seen: ClusterState) -> ObjectRef:
    if node:
        daemonsets = seen.parts[component].daemonsets if component in seen.parts else ()
        awaited = next(iter(daemonsets), None)
    elif component == machine_config.NAME:
        awaited = seen.desired[component][0]
    else:
        awaited = next((item for item in seen.desired[component] if shared_problem(item, seen)), None)
    return ref_of(awaited) if awaited else ObjectRef("v1", "Node", "", node)


_TEMPLATE = ("spec", "template", "metadata")
_MAPS = ("labels", "annotations")
PodMetadata = Mapping[str, Mapping[str, str | None]]
"""``labels`` and ``annotations`` -> key -> value; None removes a key."""


def pod_changes(seen: ClusterState) -> Iterator[Change]:
    """Yield a change for each driver pod whose labels or annotations differ from its template.

    This includes pods that wait for the rollout, and pods that keep their driver.
    """
    for component, part in seen.parts.items():
        for daemonset in filter(is_rolled_out, part.daemonsets):
            marks = _pod_metadata(daemonset, seen.observed.members.get(ref_of(daemonset), {}))
            for pod in (pod for (name, _), pods in seen.pods.items() if name == component for pod in pods):
                if is_owned_by(pod, daemonset) and not pod["metadata"].get("deletionTimestamp"):
                    yield from _pod_change(component, pod, marks)


def applied_metadata(daemonset: Manifest) -> Manifest:
    """Return the metadata that a DaemonSet gives its pods, as a partial Pod."""
    return {"metadata": _pod_metadata(daemonset, {})}


def _pod_metadata(daemonset: Manifest, live: Manifest) -> PodMetadata:
    """Return the labels and annotations that a DaemonSet adds to its pods or removes from them.

    Labels of the selector are left out, and the digest, which names the template of a pod.
    """
    template = daemonset["spec"]["template"]["metadata"]
    fixed = {*daemonset["spec"]["selector"]["matchLabels"], DIGEST}
    maps = {key: dict.fromkeys(owned_keys(live, *_TEMPLATE, key)) | template.get(key, {}) for key in _MAPS}
    return {key: {name: each[name] for name in sorted(each.keys() - fixed)} for key, each in maps.items()}


def _pod_change(component: str, pod: Manifest, marks: PodMetadata) -> Iterator[Change]:
    live: PodMetadata = {key: pod["metadata"].get(key) or {} for key in _MAPS}
    if all(marks[key].items() <= live[key].items() for key in _MAPS):
        return
    patch = {key: {name: value for name, value in marks[key].items() if live[key].get(name) != value} for key in _MAPS}
    if not any(patch.values()):
        return
    after = {
        key: {name: value for name, value in {**live[key], **patch[key]}.items() if value is not None} for key in _MAPS
    }
    names = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    yield Change(
        component=component,
        action=Action.UPDATE,
        ref=ref_of(pod),
        fields=changes_between({"metadata": live}, {"metadata": after}),
        effects=(NO_DRIVER_RESTART,),
        manifest={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**names, **{key: each for key, each in patch.items() if each}},
            "spec": {"nodeName": pod_view.node_of(pod)},
        },
    )
