"""What a plan promises to write, and what an API server was asked to write, in the same words.

`_PROMISES` maps each action of a plan to writes, `_of_rollout` its rollout, and `asked` each request of the log.
`BOOKKEEPING` names what no plan counts. A write that no promise covers, and a promise that no write keeps, are faults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest

Document = Mapping[str, Any]

BOOKKEEPING = frozenset(
    {("leases", "sandbox"), ("configmaps", "sandbox-history"), ("configmaps", "sandbox-validations")}
)
"""Records of the tool itself: its lock, its runs, what has passed."""

VALIDATION, FIRST_VALIDATION = "device_plugin_validation", "driver_validation"
VALIDATOR = "validator"
_DRIVER, _VALIDATOR = "driver", "nvidia-operator-validator-"
_PLURALS = {"RuntimeClass": "runtimeclasses"}
_PATH = re.compile(
    r"/(?:api|apis/[^/]+)/[^/]+(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?"
)


class Write(NamedTuple):
    """One thing that is done to one object; a pod of the stack is named by its component and node."""

    what: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return " ".join(filter(None, self))


class Pod(NamedTuple):
    """A pod of the stack; it has its phase, as pods that have succeeded go together."""

    phase: str
    component: str
    node: str
    uid: str
    owner: str
    is_leaving: bool


class Cluster(NamedTuple):
    """What of a cluster tells later what was done to it: the stack's pods and the nodes of all pods by name, labels."""

    pods: Mapping[str, Pod]
    labels: Mapping[str, Mapping[str, str]]
    record: Mapping[str, str]
    scheduled: Mapping[str, str]


def looked_at(
    nodes: Iterable[Document], pods: Iterable[Document], record: Mapping[str, str], events: Iterable[Document]
) -> Cluster:
    """Return what matters of nodes, of the pods of the stack, of its record of validations, and of Events."""
    return Cluster(
        record=record,
        scheduled={
            event["involvedObject"]["name"]: event["message"].rpartition(" ")[2]
            for event in events
            if event["reason"] == "Scheduled"
        },
        pods={pod["metadata"]["name"]: _pod(pod) for pod in pods},
        labels={node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes},
    )


def _pod(pod: Document) -> Pod:
    metadata, spec = pod["metadata"], pod["spec"]
    return Pod(
        phase=pod.get("status", {}).get("phase", ""),
        component=metadata["labels"]["gpu-provision.io/component"],
        node=spec.get("nodeName", ""),
        uid=metadata["uid"],
        owner=next((owner["name"] for owner in metadata.get("ownerReferences", ())), ""),
        is_leaving="deletionTimestamp" in metadata,
    )


def asked(requests: Iterable[LoggedRequest], before: Cluster, after: Cluster) -> Iterator[Write]:
    """Yield what an API server was asked to do, but for bookkeeping.

    The log does not name pods that are created, and they are gone afterwards; the record tells where they ran. A
    validation that a kubelet turned away, or under which a pod was replaced, is deleted and created once more. So is
    the validator's pod: its DaemonSet may have replaced it before the toolkit's DaemonSet replaced that pod.
    """
    created = 0
    ran = [node for node, verdict in after.record.items() if before.record.get(node) != verdict]
    for request in requests:
        found = _PATH.fullmatch(request.path)
        assert found, request
        namespace, plural, name, part = (found[key] or "" for key in ("namespace", "plural", "name", "part"))
        if (plural, name) in BOOKKEEPING:
            continue
        if not name:  # a pod, or what is written right after: a namespace for the lock, the lock, a record
            created += plural == "pods" and request.verb == "POST"  # those that succeeded are deleted all at once
        elif plural == "pods" and request.verb == "DELETE" and name not in before.pods and VALIDATION in _unnamed(name):
            created -= 1
        elif plural == "pods" and request.verb == "DELETE" and name not in before.pods and _VALIDATOR in name:
            yield Write("delete", VALIDATOR, "", after.scheduled[name])
        elif plural == "pods":
            yield _of_pod("evict" if part else request.verb.lower(), namespace, name, before)
        else:
            yield Write("delete" if request.verb == "DELETE" else "write", plural, namespace, name)
    yield from (Write("run", VALIDATION, "", node) for node in ran)
    yield from [Write("run", "a pod that is on no record", "", "")] * (created - len(ran))


def _unnamed(name: str) -> str:
    return name.replace("-", "_")


def _of_pod(verb: str, namespace: str, name: str, before: Cluster) -> Write:
    pod = before.pods.get(name)
    return Write(verb, pod.component, "", pod.node) if pod else Write(verb, "pods", namespace, name)


def promised(plan: Document, before: Cluster) -> Iterator[Write]:
    for change in plan["changes"]:
        yield from _PROMISES[change["action"]](change, before)
    yield from _of_rollout(plan)


def _written(change: Document, before: Cluster) -> Iterator[Write]:
    ref = change["object"]
    yield _of_pod("patch", ref["namespace"], ref["name"], before) if ref["kind"] == "Pod" else _to("write", ref)


def _deleted(change: Document, before: Cluster) -> Iterator[Write]:
    ref = change["object"]
    yield _of_pod("delete", ref["namespace"], ref["name"], before) if ref["kind"] == "Pod" else _to("delete", ref)


def _run(change: Document, before: Cluster) -> Iterator[Write]:
    """A validation takes the place of the one before it. The first one runs in a pod that its DaemonSet makes."""
    component, node = change["component"], change["node"]
    if component == FIRST_VALIDATION:
        return
    yield Write("run", component, "", node)
    here = (pod for pod in before.pods.values() if (pod.component, pod.node) == (component, node))
    if any(pod.phase != "Succeeded" for pod in here):
        yield Write("delete", component, "", node)


def _nothing(_change: Document, _before: Cluster) -> Iterator[Write]:
    return iter(())


_PROMISES: Mapping[str, Callable[[Document, Cluster], Iterator[Write]]] = {
    "create": _written,
    "update": _written,
    "delete": _deleted,
    "run": _run,
    "wait": _nothing,
}


def validated_first(plan: Document) -> frozenset[str]:
    """Return the nodes on which the run or a controller replaces the validator's pod, so that its vectorAdd runs."""
    runs = (change for change in plan["changes"] if change["action"] == "run")
    return frozenset(change["node"] for change in runs if change["component"] == FIRST_VALIDATION)


def _to(what: str, ref: Document) -> Write:
    kind = ref["kind"]
    return Write(what, _PLURALS.get(kind, f"{kind.lower()}s"), ref["namespace"], ref["name"])


def rolled_out(plan: Document) -> frozenset[str]:
    """Return the nodes whose drivers a plan replaces, without those that leave."""
    return frozenset(node["node"] for node in _taken(plan) if not node["leaves"])


def _taken(plan: Document) -> list[Document]:
    waves = plan["rollout"]["waves"] if plan["rollout"] else ()
    return [node for wave in waves for node in wave["nodes"]]


def moved(plan: Document) -> frozenset[str]:
    """Return the nodes that another DaemonSet serves from now on: a controller ends the driver pod there."""
    changes = (change for change in plan["changes"] if change["object"]["kind"] == "Node")
    return frozenset(change["node"] for change in changes if change["nodes"])


def _of_rollout(plan: Document) -> Iterator[Write]:
    """Yield the writes of a rollout: the state of each node, its cordon with it; evictions; and its driver pod."""
    rollout = plan["rollout"] or {"under_way": (), "marked": ()}
    names = (*(node["node"] for node in _taken(plan)), *rollout["under_way"], *rollout["marked"])
    yield from (Write("write", "nodes", "", node) for node in names)
    yield from (Write("delete", _DRIVER, "", node) for node in rolled_out(plan) - moved(plan))
    going = (pod for node in _taken(plan) for pod in node["evicts"] if pod["certain"])
    yield from (Write("evict", "pods", pod["namespace"], pod["name"]) for pod in going)
