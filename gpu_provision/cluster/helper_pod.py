"""The helper pod: how a node's own shell is reached through the Kubernetes API.

It is bound to the node and privileged, shares the node's process numbers, and needs no more of its image than nsenter.
It belongs to one client. It ends by itself when it is too old, and whoever connects to the node next removes what a
client has left behind that is no more.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_provision.cluster import codes
from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.facts import node_facts
from gpu_provision.components import labels
from gpu_provision.diagnose.pods import cause, phase
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ProvisionError, RunFailed
from gpu_provision.model.inventory import HelperPod

POD = Kind("v1", "Pod")
CLIENT = "gpu-provision.io/client"
PURPOSE = "host-shell"
ENTER = ("nsenter", "-t", "1", "-m", "-u", "-i", "-n", "-p", "--")
LIFETIME_SECONDS = 3600
_START_SECONDS = 120
_POLL_SECONDS = 0.25
_OVER = frozenset({"Failed", "Succeeded"})
_HOPELESS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"}
    | {"RunContainerError"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who made a helper pod: a process on a machine.

    Attributes:
        machine: Name of the machine and its process numbers' space: containers have their own.
        process: Number of the process, and when it was started.
    """

    machine: str
    process: str

    def __str__(self) -> str:
        """Return it as the annotation holds it."""
        return f"{self.machine} {self.process}"


def this_client() -> Client:
    """Return ourselves."""
    space = Path("/proc/self/ns/pid")
    numbers = str(space.readlink()) if space.exists() else ""
    return Client(machine=f"{socket.gethostname()}/{numbers}", process=_process(os.getpid()))


def _process(number: int) -> str:
    """Return a process by its number and its start; empty if there is none."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return f"{number}/{stat.rpartition(')')[2].split()[19]}"


def is_left_behind(pod: Manifest, us: Client) -> bool:
    """Whether nobody uses a helper pod any more: it has ended, or its client, a process of this machine, has."""
    if phase(pod) in _OVER:
        return True
    annotations = pod["metadata"].get("annotations") or {}
    machine, _, process = str(annotations.get(CLIENT, "")).rpartition(" ")
    return machine == us.machine and _process(int(process.partition("/")[0] or 0)) != process


def manifest(node: str, settings: HelperPod, us: Client) -> Manifest:
    """Return a new helper pod for a node."""
    container = {
        "name": "shell",
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [*ENTER, "sleep", str(LIFETIME_SECONDS)],
        "securityContext": {"privileged": True, "runAsUser": 0},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"gpu-provision-{PURPOSE}-{secrets.token_hex(5)}",
            "namespace": settings.namespace,
            "labels": {"app.kubernetes.io/managed-by": "gpu-provision", labels.HELPER: PURPOSE},
            "annotations": {CLIENT: str(us)},
        },
        "spec": {
            "nodeName": node,
            "hostPID": True,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFETIME_SECONDS,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
            "containers": [container],
        },
    }


def start(cluster: Cluster, node: str, settings: HelperPod, us: Client) -> ObjectRef:
    """Return a helper pod that runs on a node, and remove those that were left behind there.

    Raises:
        ProvisionError: The node cannot have one, or the API server does not let us.
    """
    _see_that_node_is_ready(cluster, node)
    _remove_left_behind(cluster, node, settings.namespace, us)
    pod = cluster.create(manifest(node, settings, us))
    ref = ref_of(pod)
    try:
        _wait(cluster, ref, node, settings)
    except BaseException:
        cluster.delete(ref)
        raise
    return ref


def _see_that_node_is_ready(cluster: Cluster, node: str) -> None:
    """A pod that is bound to a node that does not run would stay, and be pending, for good."""
    found = cluster.get(ObjectRef("v1", "Node", "", node))
    if found is None:
        raise RunFailed(
            Finding(
                code=codes.NODE_AWAY,
                what=f"{cluster.name} has no node {node}",
                where=node,
                fix="write its name as kubectl get nodes shows it",
            )
        )
    if not node_facts(found).ready:
        raise RunFailed(
            Finding(
                code=codes.NODE_AWAY,
                what="the node is not ready, so no pod can be started on it",
                where=node,
                evidence=_why_not_ready(found),
                fix="see to its kubelet, or reach this host over SSH (connect: ssh)",
            )
        )


def _why_not_ready(node: Manifest) -> str:
    conditions = node.get("status", {}).get("conditions", ())
    return next((str(each.get("message", "")) for each in conditions if each["type"] == "Ready"), "")


def _remove_left_behind(cluster: Cluster, node: str, namespace: str, us: Client) -> None:
    found = cluster.list(POD, namespace=namespace, label_selector=f"{labels.HELPER}={PURPOSE}").items
    for pod in found:
        if pod["spec"].get("nodeName") == node and is_left_behind(pod, us):
            cluster.delete(ref_of(pod), uid=pod["metadata"]["uid"])


def _wait(cluster: Cluster, ref: ObjectRef, node: str, settings: HelperPod) -> None:
    """Wait until the pod runs; fail as soon as it is clear that it will not."""
    give_up = time.monotonic() + _START_SECONDS
    while True:
        pod = cluster.get(ref)
        if pod is None:
            raise _does_not_start(node, settings, "somebody has deleted it")
        if phase(pod) == "Running":
            return
        if phase(pod) in _OVER or _is_hopeless(pod) or time.monotonic() > give_up:
            raise _does_not_start(node, settings, cause(pod))
        time.sleep(_POLL_SECONDS)


def _is_hopeless(pod: Manifest) -> bool:
    statuses: Sequence[Manifest] = pod.get("status", {}).get("containerStatuses", ())
    return any(status.get("state", {}).get("waiting", {}).get("reason") in _HOPELESS for status in statuses)


def _does_not_start(node: str, settings: HelperPod, evidence: str) -> ProvisionError:
    return RunFailed(
        Finding(
            code=codes.POD_AWAY,
            what="the helper pod does not start on this node",
            where=node,
            evidence=f"{evidence} (image {settings.image}, namespace {settings.namespace})",
            fix="set helper_pod.image to an image that this node can have and that holds nsenter, "
            "helper_pod.namespace to a namespace that admits privileged pods",
        )
    )
