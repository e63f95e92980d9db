"""Looking again and again finds what looking once does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpu_provision.diagnostics.pods import node_of
from gpu_provision.kube.informer import News
from gpu_provision.model.cluster import ref_of
from gpu_provision.reconcile.rollout_states import Sight
from gpu_provision.reconcile.situation import Groups
from gpu_provision.rollout.observe import Declared, Seen, is_ours, observe
from gpu_provision.rollout.snapshot import Proof, Snapshot

STACK, COMPONENT = "gpu-provision.io/stack", "gpu-provision.io/component"
NODES, SPACES = ("n1", "n2", "n3", ""), ("a", "b")
READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}


class Cluster:
    """Objects that are replaced, as watches do it, and never changed."""

    def __init__(self, seed: int) -> None:
        """Begin with nothing but nodes."""
        self.fate, self.count = random.Random(seed), 0  # noqa: S311 - no secrets here
        self.nodes = {name: self.node(name) for name in ("n1", "n2", "stranger")}
        self.pods: dict[str, dict[str, Any]] = {}
        self.budgets: dict[str, dict[str, Any]] = {}
        self.claims: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, str] = {}
        self.proofs: dict[str, Proof] = {}
        self.declared = {name: self.wish(place) for place, name in enumerate(("n2", "n1", "n3"))}

    def some(self, *things: Any) -> Any:
        """One of these things."""
        return self.fate.choice(things)

    def happens(self, once_in: int) -> bool:
        """Whether something that happens once in so many cases does."""
        return self.fate.randrange(once_in) == 0

    def node(self, name: str) -> dict[str, Any]:
        """A Node, cordoned or not."""
        self.count += 1
        metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(self.count)}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        return {**node, "spec": {"unschedulable": self.happens(2)}, "status": READY}

    def wish(self, place: int) -> Declared:
        """Either driver."""
        digest = self.some("old", "new")
        container = {"name": "d", "env": [{"name": "DRIVER_CONFIG_DIGEST", "value": digest}]}
        return Declared(domain="d", position=place, template={"spec": {"containers": [container]}}, version=digest)

    def pod(self, name: str) -> dict[str, Any]:
        """A pod of ours, or somebody's, somewhere."""
        labels = {STACK: "prod", COMPONENT: "driver"} if self.happens(2) else {"app": self.some("x", "y")}
        metadata = {"name": name, "namespace": self.some(*SPACES), "uid": f"uid-{name}", "labels": labels}
        container = {"name": "m", "resources": {"limits": {"nvidia.com/gpu": self.some("0", "1")}}}
        claims = [{"resourceClaimName": self.some("c1", "c2")}]
        spec = {"nodeName": self.some(*NODES), "containers": [container], "resourceClaims": claims}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": READY}

    def budget(self, name: str) -> dict[str, Any]:
        """A PodDisruptionBudget."""
        metadata = {"name": name, "namespace": self.some(*SPACES)}
        spec = {"selector": {"matchLabels": {"app": self.some("x", "y")}}}
        return {"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": self.some(0, 1)}}

    def claim(self, name: str) -> dict[str, Any]:
        """A ResourceClaim, of a GPU or not."""
        results = [{"driver": "gpu.nvidia.com"}] if self.happens(2) else []
        metadata = {"name": name, "namespace": self.some(*SPACES)}
        return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}

    def change(self) -> None:
        """Let something happen."""
        kinds = [(self.nodes, self.node, NODES[:3]), (self.pods, self.pod, [f"p{number}" for number in range(12)])]
        kinds += [(self.budgets, self.budget, ["b1", "b2"]), (self.claims, self.claim, ["c1", "c2"])]
        objects, make, names = self.some(*kinds)
        name = self.some(*names)
        objects[name] = make(name)
        if self.happens(3):
            del objects[name]
        if self.happens(3):
            self.refusals[f"uid-p{self.fate.randrange(12)}"] = self.some("not now", "never")
        if self.happens(3):
            self.proofs[self.some(*NODES[:3])] = Proof(passed=self.happens(2))
        if self.happens(4):
            self.declared = {**self.declared, self.some(*NODES[:3]): self.wish(self.fate.randrange(9))}
        if self.happens(9):
            self.declared = {name: wish for name, wish in self.declared.items() if name != self.some(*NODES[:3])}

    def seen(self) -> Seen:
        """Return everything."""
        found = (list(objects.values()) for objects in (self.nodes, self.pods, self.budgets, self.claims))
        nodes, pods, budgets, claims = found
        said = {"refusals": self.refusals, "proofs": self.proofs}
        return Seen(nodes=nodes, pods=pods, budgets=budgets, claims=claims, **said)


class Looks:
    """Looks at a cluster again and again, whose pods are in two scopes."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.nodes, self.pods = Groups(lambda node: str(node["metadata"]["name"])), (Groups(node_of), Groups(node_of))
        self.sight = Sight(self.nodes, self.pods)

    def observe(self, cluster: Cluster, now: int) -> Snapshot:
        """Look once more."""
        moved = self.nodes.take(News(now, {ref_of(node): node for node in cluster.nodes.values()}, is_whole=True))
        for place, group in enumerate(self.pods):
            there = {ref_of(pod): pod for pod in cluster.pods.values() if is_ours(pod) == bool(place)}
            moved |= group.take(News(now, there, is_whole=True))
        return self.sight.observe(cluster.declared, cluster.seen(), moved, now=now, previous="before")


@pytest.mark.parametrize("seed", range(8))
def test_whatever_has_changed_is_seen(seed: int) -> None:
    """Nodes, pods that come, go and move, budgets, claims, answers to evictions, proofs, and what is wanted."""
    cluster, looks = Cluster(seed), Looks()
    for now in range(150):
        again = looks.observe(cluster, now)
        assert again == observe(cluster.declared, cluster.seen(), now=now, previous="before")
        cluster.change()


def test_what_has_not_changed_is_not_read_anew() -> None:
    """The same values come back, so that nobody has to compare them."""
    cluster, looks = Cluster(1), Looks()
    for _ in range(60):
        cluster.change()
    cluster.nodes |= {"n1": cluster.node("n1"), "n2": cluster.node("n2")}
    before = looks.observe(cluster, 1)
    cluster.nodes["n1"] = cluster.node("n1")
    after = looks.observe(cluster, 2)
    kept = {node.name for node, old in zip(after.nodes, before.nodes, strict=True) if node is old}
    assert "n2" in kept
    assert "n1" not in kept
