"""The helper pod: how a node's own shell is reached through the Kubernetes API.

It is bound to the node and privileged, shares the node's process numbers, and needs no more of its image than nsenter.
It belongs to one client, a process. It ends by itself when it is too old. The next run on a dead client's machine
removes it at once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from gpu_provision.cluster import codes
from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.facts import node_facts
from gpu_provision.cluster.holders import identity, is_dead
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


def is_left_behind(pod: Manifest) -> bool:
    """Whether no client uses a helper pod any more: it has ended, or its client was a process here that is gone.

    A client elsewhere counts as alive: another machine cannot tell a dead one from one that waits.
    """
    annotations = pod["metadata"].get("annotations") or {}
    return phase(pod) in _OVER or is_dead(str(annotations.get(CLIENT, "")))


def remove_left_behind(cluster: Cluster, namespace: str) -> None:
    """Delete the helper pods, on any node, that no client uses any more: one LIST.

    Raises:
        Refused, Unreachable: As the API server answers.
    """
    for pod in cluster.list(POD, namespace=namespace, label_selector=f"{labels.HELPER}={PURPOSE}").items:
        if is_left_behind(pod) and not pod["metadata"].get("deletionTimestamp"):
            cluster.delete(ref_of(pod), uid=pod["metadata"]["uid"])


def manifest(node: str, settings: HelperPod) -> Manifest:
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
            "annotations": {CLIENT: identity()},
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


def start(cluster: Cluster, node: str, settings: HelperPod) -> ObjectRef:
    """Return a helper pod that runs on a node.

    Raises:
        ProvisionError: The node cannot have one, or the API server does not let us.
    """
    _see_that_node_is_ready(cluster, node)
    pod = cluster.create(manifest(node, settings))
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
