"""What a plan promises to write, and what an API server was asked to write, in the same words.

`_PROMISES` maps each action of a plan to the writes that it stands for, `asked` each request of the server's log to one
write. A write that no promise covers, and a promise that no write keeps, are faults of the product.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gpu_provision.sandbox.apiserver.requestlog import Request
from tests.promises.inventories import OPERANDS

Document = Mapping[str, Any]

BOOKKEEPING = frozenset({("leases", "sandbox"), ("configmaps", "sandbox-history"), ("configmaps", "sandbox-validations")})
"""Records of the tool itself, which no plan counts: its lock, its runs, what has passed."""

VALIDATIONS = ("driver_validation", "device_plugin_validation")
DRIVER = "driver"

_PATH = re.compile(
    r"/(?:api|apis/[^/]+)/[^/]+(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?"
)
_PLURALS = {"RuntimeClass": "runtimeclasses", "PriorityClass": "priorityclasses"}


class Write(NamedTuple):
    """One thing that is done to one object; a pod of the stack is named by what it is for and its node."""

    what: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return " ".join(filter(None, self))


class Pod(NamedTuple):
    """A pod of the stack."""

    component: str
    node: str
    uid: str
    is_leaving: bool
    owner: str


class Cluster(NamedTuple):
    """What of a cluster tells later who has changed it."""

    pods: Mapping[str, Pod]
    nodes: Mapping[str, Document]


def looked_at(nodes: Iterable[Document], pods: Iterable[Document]) -> Cluster:
    """Return what matters of all nodes, and of the pods in the operands' namespace."""
    return Cluster(
        pods={pod["metadata"]["name"]: _pod(pod) for pod in pods},
        nodes={node["metadata"]["name"]: node for node in nodes},
    )


def _pod(pod: Document) -> Pod:
    metadata, spec = pod["metadata"], pod["spec"]
    return Pod(
        component=metadata["labels"].get("gpu-provision.io/component", ""),
        node=spec.get("nodeName", "") or _pinned(spec),
        uid=metadata["uid"],
        is_leaving="deletionTimestamp" in metadata,
        owner=next((owner["name"] for owner in metadata.get("ownerReferences", ())), ""),
    )


def _pinned(spec: Document) -> str:
    found = re.search(r"'metadata.name', 'operator': 'In', 'values': \['([^']+)'\]", str(spec.get("affinity", "")))
    return found[1] if found else ""


def asked(requests: Iterable[Request], before: Cluster, after: Cluster) -> Iterator[Write]:
    """Yield what an API server was asked to do, but for bookkeeping; what it refused counts as well."""
    created = 0
    for request in requests:
        found = _PATH.fullmatch(request.path)
        assert found, request
        namespace, plural, name = found["namespace"] or "", found["plural"], found["name"] or ""
        if (plural, name) in BOOKKEEPING or (plural, request.verb) in {("leases", "POST"), ("configmaps", "POST")}:
            continue
        if (plural, request.verb) == ("pods", "POST") and not found["part"]:
            created += 1
        elif plural == "pods":
            yield _of_pod("evict" if found["part"] == "eviction" else request.verb.lower(), namespace, name, before)
        elif request.verb == "POST":
            continue  # makes a namespace for the lock, which is applied later
        else:
            yield Write("delete" if request.verb == "DELETE" else "write", plural, namespace, name)
    known = {pod.uid for pod in before.pods.values()}
    new = [pod for pod in after.pods.values() if pod.component in VALIDATIONS and pod.uid not in known]
    yield from (Write("run", pod.component, "", pod.node) for pod in new)
    yield from [Write("run", "a pod that is gone again", "", "")] * (created - len(new))


def _of_pod(verb: str, namespace: str, name: str, before: Cluster) -> Write:
    pod = before.pods.get(name) if namespace == OPERANDS else None
    return Write(verb, pod.component, "", pod.node) if pod else Write(verb, "pods", namespace, name)


def promised(plan: Document, before: Cluster) -> Iterator[Write]:
    """Yield what a plan says is written."""
    for change in plan["changes"]:
        yield from _PROMISES[change["action"]](change, before)
    yield from _of_rollout(plan["rollout"], before) if plan["rollout"] else ()


def _written(change: Document, _: Cluster) -> Iterator[Write]:
    yield _on_object("write", change["object"])


def _deleted(change: Document, before: Cluster) -> Iterator[Write]:
    ref = change["object"]
    yield _of_pod("delete", ref["namespace"], ref["name"], before) if ref["kind"] == "Pod" else _on_object("delete", ref)


def _run(change: Document, before: Cluster) -> Iterator[Write]:
    """A validation takes the place of the one before it."""
    component, node = change["component"], change["node"]
    yield Write("run", component, "", node)
    if any((pod.component, pod.node) == (component, node) for pod in before.pods.values()):
        yield Write("delete", component, "", node)


def _nothing(_: Document, __: Cluster) -> Iterator[Write]:
    yield from ()


_PROMISES: Mapping[str, Callable[[Document, Cluster], Iterator[Write]]] = {
    "create": _written,
    "update": _written,
    "delete": _deleted,
    "run": _run,
    "wait": _nothing,
}


def _on_object(what: str, ref: Document) -> Write:
    kind = ref["kind"]
    return Write(what, _PLURALS.get(kind, f"{kind.lower()}s"), ref["namespace"], ref["name"])


def _of_rollout(rollout: Document, before: Cluster) -> Iterator[Write]:
    """A node that a rollout takes has its state written, and its driver pod deleted, unless it changes DaemonSets."""
    nodes = [node for wave in rollout["waves"] for node in wave["nodes"]]
    for node in nodes:
        yield Write("write", "nodes", "", node["node"])
        yield Write("delete", DRIVER, "", node["node"])
        yield from (Write("evict", "pods", pod["namespace"], pod["name"]) for pod in node["evicts"] if pod["certain"])
    yield from (Write("write", "nodes", "", node) for node in rollout["under_way"])
