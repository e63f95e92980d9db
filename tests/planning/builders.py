"""Observed clusters made in Python: the sandbox's default fleet with what runs on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpu_provision.components.labels import COMPONENT, DIGEST
from gpu_provision.diagnose.pods import node_of
from gpu_provision.model.cluster import ClusterFacts, Context, Manifest, NodeFacts, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Desired, Situation, key_of, selects, situation
from gpu_provision.planning.verdicts import started_for, verdict_of, wanted_verdict
from tests.components.builders import fleet, inventory

GPU_NODES = ("h100-1", "t4-1", "t4-2")
_READY = [{"type": "Ready", "status": "True"}]


def labelled(facts: ClusterFacts | None = None, chosen: Inventory | None = None) -> ClusterFacts:
    """Return the facts after our labels have been written and the GPUs are offered."""
    given = facts or fleet()
    _, desired = prepare(chosen or inventory(), given)
    wanted = {item["metadata"]["name"]: item["metadata"]["labels"] for item in desired["node_labels"]}
    gpus = {"h100-1": 8, "t4-1": 1, "t4-2": 1}
    nodes = (
        replace(node, labels={**node.labels, **wanted.get(node.name, {})}, gpus_allocatable=gpus.get(node.name))
        for node in given.nodes
    )
    return replace(given, nodes=tuple(nodes))


def with_node(facts: ClusterFacts, name: str, **fields: Any) -> ClusterFacts:
    """Return the facts with some fields of one node replaced."""
    return replace(facts, nodes=tuple(replace(node, **fields) if node.name == name else node for node in facts.nodes))


def without_node(facts: ClusterFacts, name: str) -> ClusterFacts:
    """Return the facts of a cluster that lacks a node."""
    return replace(facts, nodes=tuple(node for node in facts.nodes if node.name != name))


def live(manifest: Manifest) -> Manifest:
    """Return an object as the cluster shows it once it is ready."""
    status: dict[str, Any] = {}
    if manifest["kind"] == "Deployment":
        count = manifest["spec"].get("replicas", 1)
        status = {"observedGeneration": 1, "availableReplicas": count, "updatedReplicas": count}
    if manifest["kind"] == "CustomResourceDefinition":
        status = {"conditions": [{"type": "Established", "status": "True"}]}
    metadata = {**manifest["metadata"], "uid": f"uid-of-{manifest['metadata']['name']}", "generation": 1}
    return {**manifest, "metadata": metadata, "status": status}


def daemon_pod(daemonset: Manifest, node: str, **fields: Any) -> Manifest:
    """Return the ready pod of a DaemonSet on a node."""
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
    return {**pod, "status": {"phase": "Running", "conditions": _READY}, **fields}


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


def validation_pod(manifest: Manifest, phase: str, **status: Any) -> Manifest:
    """Return a validation pod in a phase."""
    pod = _with_metadata(manifest, uid=f"uid-of-{manifest['metadata']['name']}")
    return {**pod, "status": {"phase": phase, **status}}


class Stack:
    """An inventory and a cluster in which all of it is as declared; take away what a test is about."""

    def __init__(self, chosen: Inventory | None = None, facts: ClusterFacts | None = None) -> None:
        """Bring everything up."""
        chosen = chosen or inventory()
        given = facts if facts is not None else labelled(chosen=chosen)
        self.inventory = chosen
        self.context: Context
        self.desired: Desired
        self.context, self.desired = prepare(chosen, given)
        manifests = [item for items in self.desired.values() for item in items]
        self.members = {ref_of(item): live(item) for item in manifests if item["kind"] not in {"Node", "Pod"}}
        self.pods = {ref_of(pod): pod for pod in self._daemon_pods(given.nodes)}
        self.passed = {
            (component, node_of(pod)): verdict_of(pod)
            for component in self.desired
            for pod in self.validations(component)
        }

    def _daemon_pods(self, nodes: Iterable[NodeFacts]) -> Iterable[Manifest]:
        for items in self.desired.values():
            for item in items:
                for node in nodes if item["kind"] == "DaemonSet" else ():
                    if selects(item, node.labels):
                        yield daemon_pod(item, node.name)

    def validations(self, component: str) -> list[Manifest]:
        """Return a component's validation pods as a run would start them now."""
        targets = {target.name: target for target in self.context.targets}
        pods: dict[tuple[str, str], tuple[Manifest, ...]] = {}
        for pod in self.pods.values():
            pods[key_of(pod)] = (*pods.get(key_of(pod), ()), pod)
        return [
            started_for(wanted_verdict(component, targets[node_of(item)], item, pods), item)
            for item in self.desired[component]
            if item["kind"] == "Pod"
        ]

    def daemonset(self, component: str, node: str = "t4-1") -> Manifest:
        """Return the DaemonSet of a component that serves a node."""
        found = next(facts for facts in self.context.facts.nodes if facts.name == node)
        return next(
            item for item in self.desired[component] if item["kind"] == "DaemonSet" and selects(item, found.labels)
        )

    def pod(self, component: str, node: str) -> Manifest:
        """Return a component's pod on a node."""
        return next(
            pod
            for pod in self.pods.values()
            if pod["metadata"]["labels"].get(COMPONENT) == component and pod["spec"].get("nodeName") == node
        )

    def put(self, pod: Manifest) -> None:
        """Show a pod, in place of one of its name."""
        self.pods[ref_of(pod)] = pod

    def remove(self, pod: Manifest) -> None:
        """Take a pod away."""
        del self.pods[ref_of(pod)]

    @property
    def observed(self) -> Observed:
        """What is seen."""
        return Observed(
            cluster="test (v1.34.0)",
            facts=self.context.facts,
            members=self.members,
            namespaces=frozenset({self.context.namespace}),
            pods=self.pods,
            passed=self.passed,
        )

    @property
    def situation(self) -> Situation:
        """What states are read off."""
        return situation(self.context, self.desired, self.observed)
