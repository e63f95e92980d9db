"""Which nodes the inventory's Node Feature Discovery has not seen yet, and why.

As long as there are any, that of the chart stays: their labels would go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.planning.applyset import component_of

_ABOUT_NODE = "nfd.node.kubernetes.io/node-name"
_NAMED = 3


def missing(
    nodes: Iterable[str], features: Mapping[ObjectRef, Manifest], pods: Mapping[ObjectRef, Manifest]
) -> dict[str, str]:
    """Return the nodes that no NodeFeature is about, each with the reason.

    Args:
        features: NodeFeatures in the namespace of the inventory's Node Feature Discovery.
        pods: The stack's pods.
    """
    published = {(item["metadata"].get("labels") or {}).get(_ABOUT_NODE) for item in features.values()}
    workers = {pod_view.node_of(pod): pod for pod in pods.values() if _is_worker(pod)}
    return {node: _reason(workers.get(node)) for node in sorted(nodes) if node not in published}


def _is_worker(pod: Manifest) -> bool:
    return component_of(pod) == "nfd" and not pod_view.is_of_deployment(pod)


def _reason(worker: Manifest | None) -> str:
    if worker is None:
        return "no worker pod"
    where = f"worker {worker['metadata']['namespace']}/{worker['metadata']['name']}"
    return f"{where} has published nothing" if pod_view.is_ready(worker) else f"{where}: {pod_view.cause(worker)}"


def waiting(missing: Mapping[str, str], began: datetime, seconds: float) -> str:
    """Return the progress message of the wait: for which nodes and why, since when, until when."""
    until = began + timedelta(seconds=seconds)
    when = f"since {began:%H:%M:%S}, until {until:%H:%M:%S} UTC"
    return f"Node Feature Discovery has yet to see {_told(missing)}; {when}"


def not_seen(missing: Mapping[str, str], seconds: float) -> Finding:
    """Return the error about nodes that were not seen in time."""
    return Finding(
        code=codes.NOT_DONE,
        what=f"Node Feature Discovery has not seen every node after {seconds:.0f} s; that of the chart stays",
        where=f"Node {', '.join(missing)}",
        evidence=_told(missing),
        fix="see why the worker does not publish: kubectl logs -n NAMESPACE WORKER; "
        "then run gpu-provision adopt again, which resumes",
    )


def _told(missing: Mapping[str, str]) -> str:
    named = ", ".join(f"{node} ({reason})" for node, reason in list(missing.items())[:_NAMED])
    return f"{named} and {len(missing) - _NAMED} more" if len(missing) > _NAMED else named
