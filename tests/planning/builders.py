"""Builders of observed states: the sandbox's default fleet with its pods."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpu_provision.components.device_plugin_validation import NAME as DEVICE_PLUGIN_VALIDATION
from gpu_provision.components.labels import COMPONENT, DIGEST
from gpu_provision.components.validator import VECTOR_ADD
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.model.cluster import (
    ClusterFacts,
    Manifest,
    NodeFacts,
    ObjectRef,
    ObservedState,
    RenderContext,
    ref_of,
)
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.planning.applyset import digest_of, matches_node
from gpu_provision.planning.diff import FIELD_MANAGER
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import ClusterState, Desired, cluster_state
from gpu_provision.planning.verdicts import Verdict
from tests.components.builders import fleet, inventory, with_spec

GPU_NODES = ("h100-1", "t4-1", "t4-2")
_READY = [{"type": "Ready", "status": "True"}]
STARTED, VALIDATED = "2026-11-21T07:00:00Z", "2026-11-21T07:30:00Z"
"""When operands started, and when their vectorAdds did."""


def labelled(facts: ClusterFacts | None = None, chosen: Inventory | None = None) -> ClusterFacts:
    """Return the facts with the labels of the stack and of GPU Feature Discovery, and allocatable GPUs."""
    given = facts or fleet()
    _, desired = prepare(chosen or inventory(), given)
    wanted = {item["metadata"]["name"]: item["metadata"]["labels"] for item in desired["node_labels"]}
    gpus = {"h100-1": 8, "t4-1": 1, "t4-2": 1}
    features = {name: {"nvidia.com/cuda.driver.major": "580"} for name in gpus}
    nodes = (
        replace(
            node,
            labels={**node.labels, **wanted.get(node.name, {}), **features.get(node.name, {})},
            gpus_allocatable=gpus.get(node.name),
        )
        for node in given.nodes
    )
    return replace(given, nodes=tuple(nodes))


def with_node(facts: ClusterFacts, name: str, **fields: Any) -> ClusterFacts:
    return replace(facts, nodes=tuple(replace(node, **fields) if node.name == name else node for node in facts.nodes))


def without_node(facts: ClusterFacts, name: str) -> ClusterFacts:
    return replace(facts, nodes=tuple(node for node in facts.nodes if node.name != name))


def live(manifest: Manifest) -> Manifest:
    status: dict[str, Any] = {}
    if manifest["kind"] == "Deployment":
        count = manifest["spec"].get("replicas", 1)
        status = {"observedGeneration": 1, "availableReplicas": count, "updatedReplicas": count}
    if manifest["kind"] == "CustomResourceDefinition":
        status = {"conditions": [{"type": "Established", "status": "True"}]}
    metadata = {**manifest["metadata"], "uid": f"uid-of-{manifest['metadata']['name']}", "generation": 1}
    return {**manifest, "metadata": metadata, "status": status}


def daemon_pod(daemonset: Manifest, node: str, **fields: Any) -> Manifest:
    template, name = daemonset["spec"]["template"], daemonset["metadata"]["name"]
    metadata = {
        "name": f"{name}-{node}",
        "namespace": daemonset["metadata"]["namespace"],
        "uid": f"uid-of-{name}-{node}",
        "labels": dict(template["metadata"]["labels"]),
        "annotations": dict(template["metadata"].get("annotations", {})),
        "ownerReferences": [{"kind": "DaemonSet", "name": name}],
    }
    spec = {"nodeName": node, "containers": template["spec"]["containers"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    main = {"name": spec["containers"][0]["name"], "state": {"running": {"startedAt": STARTED}}, "restartCount": 0}
    inits = [each for each in template["spec"].get("initContainers", ()) if each["name"] == VECTOR_ADD]
    ended = [{"name": each["name"], "state": {"terminated": vector_add(boot=f"boot-of-{node}")}} for each in inits]
    status = {"phase": "Running", "conditions": _READY, "containerStatuses": [main], "initContainerStatuses": ended}
    return {**pod, "status": status, **fields}


def vector_add(code: int = 0, began: str = VALIDATED, *, boot: str = "", said: str = "Test PASSED") -> Manifest:
    return {"exitCode": code, "startedAt": began, "message": f"boot {boot}\n{said}\n"}


def shown(pod: Manifest, *, began: str = VALIDATED, code: int = 0, **fields: Any) -> Manifest:
    """Return the validator's pod after another vectorAdd."""
    boot = f"boot-of-{pod['spec']['nodeName']}"
    ended = [{"name": VECTOR_ADD, "state": {"terminated": vector_add(code, began, **{"boot": boot, **fields})}}]
    return {**pod, "status": {**pod["status"], "initContainerStatuses": ended}}


def restarted(pod: Manifest, at: str) -> Manifest:
    main = {**pod["status"]["containerStatuses"][0], "state": {"running": {"startedAt": at}}, "restartCount": 1}
    return {**pod, "status": {**pod["status"], "containerStatuses": [main]}}


def outdated(pod: Manifest) -> Manifest:
    """Return the pod as one of earlier content; a driver as one that was installed otherwise."""
    containers = [
        {**each, "env": [_earlier(variable) for variable in each.get("env", ())]} for each in pod["spec"]["containers"]
    ]
    return {**relabelled(pod), "spec": {**pod["spec"], "containers": containers}}


def relabelled(pod: Manifest) -> Manifest:
    """Return the pod as one of another template, whose installation is the same."""
    return _with_metadata(pod, labels={**pod["metadata"]["labels"], DIGEST: "of-earlier-content"})


def _earlier(variable: Manifest) -> Manifest:
    return {**variable, "value": "earlier"} if variable["name"] == "DRIVER_CONFIG_DIGEST" else variable


def terminating(pod: Manifest) -> Manifest:
    """Return the pod as one on its way out."""
    return _with_metadata(pod, deletionTimestamp="2026-11-21T08:00:00Z")


def _with_metadata(pod: Manifest, **fields: Any) -> Manifest:
    return {**pod, "metadata": {**pod["metadata"], **fields}}


def validation_pod(manifest: Manifest, phase: str, began: str = VALIDATED, **status: Any) -> Manifest:
    pod = _with_metadata(manifest, uid=f"uid-of-{manifest['metadata']['name']}")
    boot = f"boot-of-{node_of(manifest)}"
    passed, failed = vector_add(0, began, boot=boot), vector_add(1, began, boot=boot, said="no CUDA-capable device")
    ended = {"Succeeded": passed, "Failed": failed}
    name = manifest["spec"]["containers"][0]["name"]
    statuses = [{"name": name, "state": {"terminated": ended[phase]}}] if phase in ended else []
    return {**pod, "status": {"phase": phase, "containerStatuses": statuses, **status}}


class Stack:
    """An inventory and a cluster in which all of it is as declared; take away what a test is about."""

    def __init__(self, chosen: Inventory | None = None, facts: ClusterFacts | None = None) -> None:
        chosen = chosen or inventory()
        given = facts if facts is not None else labelled(chosen=chosen)
        self.inventory = chosen
        self.context: RenderContext
        self.desired: Desired
        self.context, self.desired = prepare(chosen, given)
        manifests = [item for items in self.desired.values() for item in items]
        self.members = {ref_of(item): live(item) for item in manifests if item["kind"] not in {"Node", "Pod"}}
        self.pods = {ref_of(pod): pod for pod in self._daemon_pods(given.nodes)}
        self.passed = {
            (DEVICE_PLUGIN_VALIDATION, node_of(pod)): str(Verdict(digest_of(pod), f"boot-of-{node_of(pod)}", VALIDATED))
            for pod in self.validations()
        }

    def _daemon_pods(self, nodes: Iterable[NodeFacts]) -> Iterable[Manifest]:
        for items in self.desired.values():
            for item in items:
                for node in nodes if item["kind"] == "DaemonSet" else ():
                    if matches_node(item, node.labels):
                        yield daemon_pod(item, node.name)

    def validations(self) -> list[Manifest]:
        """Return the pods of the device plugin's validation as a run would start them now."""
        return [item for item in self.desired.get(DEVICE_PLUGIN_VALIDATION, ()) if item["kind"] == "Pod"]

    def daemonset(self, component: str, node: str = "t4-1") -> Manifest:
        found = next(facts for facts in self.context.facts.nodes if facts.name == node)
        return next(
            item for item in self.desired[component] if item["kind"] == "DaemonSet" and matches_node(item, found.labels)
        )

    def pod(self, component: str, node: str) -> Manifest:
        return next(
            pod
            for pod in self.pods.values()
            if pod["metadata"]["labels"].get(COMPONENT) == component and pod["spec"].get("nodeName") == node
        )

    def edit(self, component: str, **fields: Any) -> ObjectRef:
        """Change fields of the container of a live DaemonSet, the one that serves t4-1; return its reference."""
        ref = ref_of(self.daemonset(component))
        self.members[ref] = copy.deepcopy(self.members[ref])
        self.members[ref]["spec"]["template"]["spec"]["containers"][0] |= fields
        return ref

    def put(self, pod: Manifest) -> None:
        self.pods[ref_of(pod)] = pod

    def remove(self, pod: Manifest) -> None:
        del self.pods[ref_of(pod)]

    @property
    def observed(self) -> ObservedState:
        return ObservedState(
            cluster="test (v1.34.0)",
            facts=self.context.facts,
            members=self.members,
            namespaces=frozenset({self.context.namespace}),
            pods=self.pods,
            verdicts=self.passed,
        )

    @property
    def situation(self) -> ClusterState:
        return cluster_state(self.context, self.desired, self.observed)

    @property
    def plan(self) -> Plan:
        return plan(self.context, self.desired, self.observed)


def regrouped(**driver: str) -> tuple[Stack, Manifest]:
    """Return a stack whose T4 pool has just been given a driver of its own, and the DaemonSet that serves it still."""
    before, chosen = Stack(), inventory()
    pool = chosen.pools["t4"]
    own = replace(pool, overrides_driver=True, driver=replace(pool.driver, **driver))
    stack = Stack(replace(chosen, pools={**chosen.pools, "t4": own}), labelled(chosen=chosen))
    old = before.daemonset("driver", "t4-1")
    stack.members[ref_of(old)] = before.members[ref_of(old)]
    for node in ("t4-1", "t4-2"):
        stack.put(before.pod("driver", node))
    return stack, old


def stack_with_pod_metadata(*, before: dict[str, str] | None = None) -> Stack:
    """Return a stack that declares a label and an annotation for its pods; both are there."""
    made = Stack(with_spec("daemonsets", labels={"team": "ml"}, annotations={"example.com/contact": "ada"}))
    for ref, live in made.members.items():
        if ref.kind == "DaemonSet":
            made.members[ref] = _with_template_labels(live, before or {})
    return made


def _with_template_labels(live: Manifest, added: dict[str, str]) -> Manifest:
    edited: Any = copy.deepcopy(live)
    marks = edited["spec"]["template"]["metadata"]["labels"]
    marks |= added
    fields: Any = {
        "f:spec": {"f:template": {"f:metadata": {"f:labels": {".": {}, **{f"f:{key}": {} for key in marks}}}}}
    }
    entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    edited["metadata"]["managedFields"] = [entry]
    return {**live, **edited}


def with_driver_pod(made: Stack, node: str = "t4-1", **marks: Mapping[str, Any]) -> Stack:
    """Show a driver pod with other labels or annotations; None for one that it lacks."""
    pod = made.pod("driver", node)
    changed = {key: {**pod["metadata"][key], **each} for key, each in marks.items()}
    kept = {key: {name: value for name, value in each.items() if value is not None} for key, each in changed.items()}
    made.put({**pod, "metadata": {**pod["metadata"], **kept}})
    return made
