"""Whether a pod fits on a node now, why not, and which node suits best (pure but for NodeLoad's ledger)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects, selectors
from gpu_provision.sandbox.controllers.fitting import (
    NO_EXECUTE,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    NodeView,
    selects,
    tolerates,
    untolerated,
)
from gpu_provision.sandbox.controllers.quantities import Amounts, amounts, largest, total

HOSTNAME = "kubernetes.io/hostname"
_UNSCHEDULABLE = {"key": UNSCHEDULABLE_TAINT, "effect": NO_SCHEDULE}

Port = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a pod takes of a node, and which neighbors it refuses."""

    uid: str
    namespace: str
    labels: Mapping[str, str]
    requests: Amounts
    ports: frozenset[Port]
    refuses: tuple[Mapping[str, Any], ...]


def demand_of(pod: Object) -> Demand:
    """Read a pod."""
    spec = pod["spec"]
    return Demand(
        uid=objects.uid(pod),
        namespace=objects.namespace(pod),
        labels=objects.labels(pod),
        requests=requests(spec),
        ports=_host_ports(spec),
        refuses=_refusals(spec),
    )


def requests(spec: Mapping[str, Any]) -> Amounts:
    """Return what a pod requests: the larger of its containers together and any init step."""
    running = [_container_requests(one) for one in spec.get("containers") or ()]
    sidecars: list[Amounts] = []
    steps: list[Amounts] = []
    for container in spec.get("initContainers") or ():
        own = _container_requests(container)
        steps.append(total([own, *sidecars]))
        if container.get("restartPolicy") == "Always":
            sidecars.append(own)
    together = largest([total([*running, *sidecars]), *steps])
    return total([together, amounts(spec.get("overhead")), {"pods": 1}])


def _container_requests(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _host_ports(spec: Mapping[str, Any]) -> frozenset[Port]:
    return frozenset(
        (port.get("protocol") or "TCP", port.get("hostIP") or "0.0.0.0", int(port["hostPort"]))  # noqa: S104  compared, not bound
        for container in spec.get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("hostPort")
    )


def _refusals(spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    anti = (spec.get("affinity") or {}).get("podAntiAffinity") or {}
    terms = anti.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    return tuple(term for term in terms if term.get("topologyKey") == HOSTNAME)


def refuses(pod: Demand, other: Demand) -> bool:
    """Whether ``pod`` may not share a host with ``other``."""
    return any(_refusal_meets(term, pod.namespace, other) for term in pod.refuses)


def _refusal_meets(term: Mapping[str, Any], namespace: str, other: Demand) -> bool:
    everywhere = term.get("namespaceSelector") == {}
    namespaces = term.get("namespaces") or ([] if everywhere else [namespace])
    if not everywhere and other.namespace not in namespaces:
        return False
    return selectors.matches(term.get("labelSelector"), other.labels)


@dataclass(eq=False, slots=True)
class NodeLoad:
    """A node and what runs on it; ``put`` and ``remove`` keep the sums."""

    view: NodeView
    allocatable: Amounts = field(init=False)
    pods: dict[str, Demand] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    ports: Counter[Port] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Read the allocatable amounts once."""
        self.look(self.view)

    def look(self, view: NodeView) -> None:
        """Take in a changed node."""
        self.view = view
        self.allocatable = amounts(view.allocatable)

    def put(self, pod: Demand) -> None:
        """Count a pod, once."""
        if pod.uid in self.pods:
            self.remove(pod.uid)
        self.pods[pod.uid] = pod
        self.used.update(pod.requests)
        self.ports.update(pod.ports)

    def remove(self, uid: str) -> None:
        """Count a pod no more."""
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self.used.subtract(pod.requests)
            self.ports.subtract(pod.ports)


def obstacles(spec: Mapping[str, Any], pod: Demand, load: NodeLoad) -> list[str]:
    """Return why the pod does not fit on the node, in the scheduler's words; empty if it fits.

    As in kube-scheduler, the first check that fails speaks.
    """
    view = load.view
    tolerations: Sequence[Mapping[str, Any]] = spec.get("tolerations") or ()
    if view.unschedulable and not any(tolerates(one, _UNSCHEDULABLE) for one in tolerations):
        return ["node(s) were unschedulable"]
    taint = untolerated(tolerations, view.taints, (NO_SCHEDULE, NO_EXECUTE))
    if taint is not None:
        return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if not selects(spec, view):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return _occupied(pod, load)


def _occupied(pod: Demand, load: NodeLoad) -> list[str]:
    if any(_collides(port, load) for port in pod.ports):
        return ["node(s) didn't have free ports for the requested pod ports"]
    scarce = [
        "Too many pods" if name == "pods" else f"Insufficient {name}"
        for name, amount in pod.requests.items()
        if amount and amount > load.allocatable.get(name, 0) - load.used[name]
    ]
    if scarce:
        return scarce
    if any(refuses(pod, other) for other in load.pods.values() if pod.refuses):
        return ["node(s) didn't match pod anti-affinity rules"]
    if any(refuses(other, pod) for other in load.pods.values() if other.refuses):
        return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return []


def _collides(port: Port, load: NodeLoad) -> bool:
    protocol, address, number = port
    anywhere = "0.0.0.0"  # noqa: S104  compared, not bound
    return any(
        count > 0
        and (protocol, number) == (other[0], other[2])
        and (address == other[1] or anywhere in {address, other[1]})
        for other, count in load.ports.items()
    )


def spare(pod: Demand, load: NodeLoad) -> tuple[float, int, str]:
    """Return a key that sorts the least loaded node first."""
    left = [
        (load.allocatable[name] - load.used[name] - pod.requests.get(name, 0)) / load.allocatable[name]
        for name in ("cpu", "memory")
        if load.allocatable.get(name)
    ]
    return -sum(left) / max(len(left), 1), len(load.pods), load.view.name


def explanation(nodes: int, reasons: Iterable[str]) -> str:
    """Return the message of a pod that fits nowhere, as in "0/5 nodes are available: 5 Insufficient cpu."."""
    if not nodes:
        return "no nodes available to schedule pods"
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{nodes} nodes are available: {', '.join(counted)}."
