"""Findings about a removal: what stays and why, which pods still use GPUs, what does not go away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpu_provision.destroy.nodes import NodeRemnants
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.plan import Action, Change
from gpu_provision.rollout.observe import budgets_of, pod_of
from gpu_provision.rollout.predicates import name_pods
from gpu_provision.rollout.snapshot import DisruptionBudget, Pod


def taken_over(judged: Iterable[NodeRemnants]) -> Iterator[Finding]:
    """Yield a warning for each label and cordon that stays, those of several nodes together."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for node in judged:
        for what, evidence in node.kept.items():
            nodes.setdefault((what, evidence), []).append(node.name)
    for (what, evidence), names in sorted(nodes.items()):
        kind, _, key = what.partition(" ")
        command = "kubectl uncordon" if kind == "cordon" else "kubectl label node"
        yield Finding(
            code=codes.TAKEN_OVER,
            what=f"{what} stays, since others write it, too",
            where=f"Node {', '.join(sorted(names))}",
            evidence=evidence,
            fix=f"if it is of no use to them: {command} {' '.join(sorted(names))}{f' {key}-' if key else ''}",
            severity=Severity.WARNING,
        )


def kept_definitions(refs: Iterable[ObjectRef]) -> Iterator[Finding]:
    """Yield the warning about CustomResourceDefinitions, which stay unless --crds is given."""
    names = sorted(ref.name for ref in refs)
    if names:
        yield Finding(
            code=codes.CRDS_KEPT,
            what="these stay, for with them all their objects would go",
            where="CustomResourceDefinition " + ", ".join(names),
            fix="add --crds to remove them, too",
            severity=Severity.WARNING,
        )


def programs_kept(nodes: Iterable[str], folder: str) -> Finding:
    """Return the warning about hosts that keep what the container toolkit leaves, as their host phase is off."""
    return Finding(
        code=codes.PROGRAMS_KEPT,
        what=f"the container toolkit's programs stay in {folder}: the host phase, which removes them, is off",
        where=f"Node {', '.join(sorted(nodes))}",
        fix=f"when no container uses them any more, on each of these: rm -r {folder}; or turn host_prerequisites on, "
        "and run gpu-provision destroy --hosts-only",
        severity=Severity.WARNING,
    )


def gpus_in_use(users: Mapping[str, tuple[Pod, ...]]) -> Finding:
    """Return the error about pods of others that use GPUs, by node."""
    count = sum(map(len, users.values()))
    return Finding(
        code=codes.GPUS_IN_USE,
        what=f"{count} pod{'s use' if count > 1 else ' uses'} GPUs; nothing was removed",
        where=f"Node {', '.join(users)}",
        evidence="; ".join(f"{node}: {name_pods(pods)}" for node, pods in users.items()),
        consequence="without the driver they would fail, and could not be started again",
        fix="end them, or add --evict, which has them evicted as their PodDisruptionBudgets allow",
    )


def not_evicted(pod: Pod, seconds: int) -> Finding:
    """Return the error about a pod that could not be evicted in time."""
    return Finding(
        code=codes.GPUS_IN_USE,
        what=f"the pod still uses a GPU {seconds} s after it was to be evicted; drivers were not removed",
        where=f"Pod {pod.namespace}/{pod.name}",
        evidence=pod.refusal or ("it is still terminating" if pod.is_terminating else ""),
        fix="end it, or change what its PodDisruptionBudget allows, and run again, which goes on from here",
    )


def not_gone(item: Manifest, nodes: Mapping[str, Manifest], seconds: int) -> Finding:
    """Return the error about an object that is still there so many seconds after it was deleted."""
    ref = ref_of(item)
    return Finding(
        code=codes.NOT_GONE,
        what=f"it is still there {seconds} s after it was to go",
        where=str(ref),
        evidence=why_there(item, nodes),
        fix=f"kubectl get {ref.kind.lower()} {ref.name}{f' -n {ref.namespace}' if ref.namespace else ''} -o yaml shows"
        " all of it; see to what holds it, and run again",
    )


def left_over(change: Change) -> Finding:
    """Return the error about something of the stack that the audit found."""
    is_node = change.action is Action.UPDATE
    what = "still has: " + ", ".join(field.path for field in change.fields) if change.fields else "still carries marks"
    return Finding(
        code=codes.LEFT_OVER,
        what=what if is_node else "is still there",
        where=str(change.ref),
        consequence="the removal is not complete",
        fix="run again, which removes what is left",
    )


def hosts_held_back() -> Finding:
    """Return the error about hosts that keep what the host phase did, since containers may still use it."""
    return Finding(
        code=codes.HOSTS_HELD_BACK,
        what="hosts were left as they are: the cluster still has something of the stack, which may need them",
        fix="see to what is left there and run again; hosts alone: --hosts-only, or deploys/host_teardown.py",
    )


def _is_ready(node: Manifest) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def why_there(item: Manifest, nodes: Mapping[str, Manifest]) -> str:
    """Say why an object that is to go is still there, by its first cause."""
    metadata = item["metadata"]
    if not metadata.get("deletionTimestamp"):
        owners = [f"{owner['kind']} {owner['name']}" for owner in metadata.get("ownerReferences") or ()]
        return f"waits for the garbage collector, which deletes what {', '.join(owners)} owned" if owners else ""
    if finalizers := metadata.get("finalizers"):
        return f"waits for the finalizer {', '.join(finalizers)}"
    node = nodes.get(pod_view.node_of(item))
    if node is not None and not _is_ready(node):
        return f"its node {node['metadata']['name']} is not ready, so it is unknown whether its containers have ended"
    # A namespace says what is in it, and whose finalizers hold that.
    conditions = (item.get("status") or {}).get("conditions") or ()
    said = (each.get("message", "") for each in conditions if each.get("status") == "True" and each["type"] != "Ready")
    return "; ".join(filter(None, said)) or f"is terminating since {metadata['deletionTimestamp']}"


def eviction_warnings(users: Iterable[Manifest], budgets: Iterable[Manifest]) -> Iterator[Finding]:
    """Yield warnings about pods without a controller that would be evicted, and about budgets that keep pods."""
    known = budgets_of(budgets)
    pods = [pod for pod in (pod_of(each, budgets=known) for each in users) if not pod.is_terminating]
    if lost := [pod for pod in pods if not pod.owner]:
        yield _pods_lost(lost)
    by_budget: dict[tuple[str, DisruptionBudget], list[Pod]] = {}
    for pod in pods:
        for budget in pod.budgets:
            by_budget.setdefault((pod.namespace, budget), []).append(pod)
    for (namespace, budget), covered in sorted(by_budget.items()):
        if budget.allowed < len(covered):
            yield _held_by_budget(namespace, budget, covered)


def _pods_lost(pods: list[Pod]) -> Finding:
    count = f"{len(pods)} pods that have" if len(pods) > 1 else "a pod that has"
    return Finding(
        code=codes.UNMANAGED_PODS,
        what=f"--evict takes away {count} no controller, which would start {'them' if len(pods) > 1 else 'it'} again",
        where=f"Pod {name_pods(pods)}",
        consequence="whatever is kept in the pod alone is gone with it",
        fix="let it end first, or keep its manifest: kubectl get pod NAME -o yaml",
        severity=Severity.WARNING,
    )


def _held_by_budget(namespace: str, budget: DisruptionBudget, pods: list[Pod]) -> Finding:
    now = "no pod" if budget.allowed < 1 else f"{budget.allowed} of {len(pods)} pods"
    will = "the removal will wait, and end" if budget.allowed < 1 else "the removal may wait, and end"
    return Finding(
        code=codes.BUDGET_HOLDS,
        what=f"the budget lets {now} go right now",
        where=f"PodDisruptionBudget {namespace}/{budget.name}",
        evidence=f"pods that use GPUs: {name_pods(pods)}",
        consequence=f"{will} with drivers in place after --timeout, unless others of its pods become ready elsewhere",
        fix="have more replicas run where no driver is removed, or change what the budget allows",
        severity=Severity.WARNING,
    )
