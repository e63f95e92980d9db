"""Labels and annotations of driver pods, which no change of their template reaches: they are patched onto the pods.

What a pod loses is read off the live DaemonSet: keys that this tool set in its template. So a run patches pods before
it applies their DaemonSet, and a run that is killed in between leaves the evidence to the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_provision.components.labels import DIGEST
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.plan import Action, Change
from gpu_provision.planning.applyset import belongs
from gpu_provision.planning.diff import changes_between, owned_keys
from gpu_provision.planning.states import ClusterState
from gpu_provision.planning.upgrades import NO_DRIVER_RESTART, is_rolled_out

_TEMPLATE = ("spec", "template", "metadata")
_MAPS = ("labels", "annotations")

Marks = Mapping[str, Mapping[str, str | None]]
"""``labels`` and ``annotations`` -> key -> value; None for a key that goes."""


def pod_changes(seen: ClusterState) -> Iterator[Change]:
    """Yield a change for each driver pod that lacks labels or annotations of its template, or has earlier ones.

    Pods are patched whatever their installation: one that waits for its rollout, or keeps its driver, is no exception.
    """
    for component, part in seen.parts.items():
        for daemonset in filter(is_rolled_out, part.daemonsets):
            marks = _marks(daemonset, seen.observed.members.get(ref_of(daemonset), {}))
            for pod in (pod for (name, _), pods in seen.pods.items() if name == component for pod in pods):
                if belongs(pod, daemonset) and not pod["metadata"].get("deletionTimestamp"):
                    yield from _change(component, pod, marks)


def as_applied(daemonset: Manifest) -> Manifest:
    """Return what a DaemonSet gives its pods for metadata, as a partial Pod."""
    return {"metadata": _marks(daemonset, {})}


def _marks(daemonset: Manifest, live: Manifest) -> Marks:
    """Return what the pods of a DaemonSet are to have, and not to have any more.

    Left out are labels that select pods, and the digest, which names the template that a pod was made from.
    """
    template = daemonset["spec"]["template"]["metadata"]
    fixed = {*daemonset["spec"]["selector"]["matchLabels"], DIGEST}
    found = {key: dict.fromkeys(owned_keys(live, *_TEMPLATE, key)) | template.get(key, {}) for key in _MAPS}
    return {key: {name: each[name] for name in sorted(each.keys() - fixed)} for key, each in found.items()}


def _change(component: str, pod: Manifest, marks: Marks) -> Iterator[Change]:
    live: Marks = {key: pod["metadata"].get(key) or {} for key in _MAPS}
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
