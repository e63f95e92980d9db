"""Whether a driver that runs is, in effect, the one that is wanted; and what makes it ours without a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.components import labels
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.rollout.states import installation_digest

_DRIVER = "nvidia-driver-ctr"
# Where a pod is, and what its own operator calls what is installed.
_OF_NO_EFFECT = frozenset({"NODE_NAME", "NODE_IP", "DRIVER_CONFIG_DIGEST"})
_PROBE = "nvidia-driver-startup-probe"
_TOKEN = "/var/run/secrets/kubernetes.io/"  # noqa: S105 - where the server mounts tokens, before 1.21 out of a Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDriver:
    """The driver pod of a node.

    Attributes:
        differs: In what it is not the driver that is wanted; empty if it is.
        labels: What it gets, so that our DaemonSet takes it up, and None for what only the ClusterPolicy asked for.
        annotations: The same of annotations.
    """

    node: str
    ref: ObjectRef
    uid: str
    differs: tuple[str, ...]
    labels: Mapping[str, str | None]
    annotations: Mapping[str, str | None]
    live: Manifest

    @property
    def keeps(self) -> bool:
        """Whether it goes on running."""
        return not self.differs


def compare_driver(pod: Manifest, template: Manifest, asked: Mapping[str, Any]) -> RunningDriver:
    """Compare a driver pod with the template of the DaemonSet that is to serve its node.

    ``asked`` is the section ``daemonsets`` of the ClusterPolicy, whose labels and annotations the pod has.
    """

    def surplus(key: str) -> dict[str, str | None]:
        """Return what the pod has because the ClusterPolicy asked for it, and the inventory does not: it goes."""
        live, wanted = pod["metadata"].get(key) or {}, template["metadata"].get(key, {})
        return dict.fromkeys(sorted((asked.get(key) or {}).keys() & live.keys() - wanted.keys()))

    differs = tuple(_differences(pod, template))
    marks = dict(template["metadata"]["labels"])
    if differs:  # digests are only for a pod that is as good as made from the template
        del marks[labels.DIGEST]
    else:
        marks[labels.INSTALLATION] = installation_digest(template)
    return RunningDriver(
        node=pod_view.node_of(pod),
        ref=ref_of(pod),
        uid=pod["metadata"]["uid"],
        differs=differs,
        labels=surplus("labels") | marks,
        annotations=surplus("annotations") | template["metadata"].get("annotations", {}),
        live=pod,
    )


def _differences(pod: Manifest, template: Manifest) -> Iterator[str]:
    live, wanted = _container(pod), _container(template)
    if live is None or wanted is None:
        yield f"no container {_DRIVER}"
        return
    if live["image"] != wanted["image"]:
        yield f"image {live['image']}, {wanted['image']} is wanted"
    if _command(live) != _command(wanted):
        yield f"command {' '.join(_command(live))}, {' '.join(_command(wanted))} is wanted"
    here, there = _environment(live), _environment(wanted)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            yield f"{name} is {_value(here.get(name))}, {_value(there.get(name))} is wanted"
    for source in sorted(_inputs(pod, live) ^ _inputs(template, wanted)):
        yield f"{source} is mounted in only one of the two"
    containers = [{each["name"] for each in one["spec"]["containers"]} for one in (pod, template)]
    for name in sorted(containers[0] - containers[1]):
        yield f"container {name} runs beside it"


def _value(value: Any) -> str:
    return "not set" if value is None else repr(value) if isinstance(value, str) else "set from elsewhere"


def _container(pod: Manifest) -> dict[str, Any] | None:
    return next((each for each in pod["spec"]["containers"] if each["name"] == _DRIVER), None)


def _command(container: Mapping[str, Any]) -> tuple[str, ...]:
    return (*container.get("command", ()), *container.get("args", ()))


def _environment(container: Mapping[str, Any]) -> dict[str, Any]:
    found = {each["name"]: each.get("valueFrom", each.get("value", "")) for each in container.get("env") or ()}
    found |= {f"envFrom {number}": each for number, each in enumerate(container.get("envFrom") or ())}
    return {name: value for name, value in found.items() if name not in _OF_NO_EFFECT}


def _inputs(pod: Manifest, container: Mapping[str, Any]) -> set[str]:
    """Return the ConfigMaps and Secrets that a container gets as files; how they are laid out is no difference."""
    mounts = container.get("volumeMounts") or ()
    mounted = {mount["name"] for mount in mounts if not mount["mountPath"].startswith(_TOKEN)}
    volumes = [volume for volume in pod["spec"].get("volumes") or () if volume["name"] in mounted]
    maps = {f"ConfigMap {volume['configMap']['name']}" for volume in volumes if "configMap" in volume}
    secrets = {f"Secret {volume['secret']['secretName']}" for volume in volumes if "secret" in volume}
    return (maps | secrets) - {f"ConfigMap {_PROBE}"}
