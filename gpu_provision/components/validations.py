"""What both vectorAdd validations share: a pod per node, run once per content, named by a digest of that content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_provision.components import driver, labels, pods, tolerations
from gpu_provision.components.objects import compact, digest
from gpu_provision.components.validator import ACCOUNT
from gpu_provision.model.cluster import Context, Manifest, Target

_NAME_LENGTH = 253
_ANYWHERE = {"operator": "Exists", "effect": "NoSchedule"}


def pod_spec(context: Context, container: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the spec of a pod that runs once, also on tainted and cordoned nodes.

    It has no priority: a validation must never push a workload off its GPU.
    """
    validator = context.inventory.specs.validator
    spec: dict[str, Any] = compact(
        {
            "restartPolicy": "Never",
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": False,
            "imagePullSecrets": pods.pull_secrets(validator.image_pull_secrets),
            "tolerations": tolerations.of_operands(context, (_ANYWHERE,)),
            "containers": [container],
            **fields,
        }
    )
    return spec


def vector_add(context: Context, name: str, **fields: Any) -> dict[str, Any]:
    """Return the container that adds two vectors on a GPU; its log ends in "Test PASSED"."""
    spec = context.inventory.specs.validator
    return pods.container(
        name,
        spec.image.reference,
        imagePullPolicy=spec.image_pull_policy,
        **pods.shell("vectorAdd"),
        **fields,
    )


def pod(context: Context, target: Target, app: str, spec: Mapping[str, Any], validated: Mapping[str, Any]) -> Manifest:
    """Return the pod that validates ``target``: another one whenever what it proves has changed.

    That is the pod itself, ``validated``, and the number of GPUs that the inventory expects. For which boot and which
    pods of the stack it passed, a verdict says besides; see `gpu_provision.planning.verdicts`.
    """
    gpu = target.pool.gpu
    content = {
        "spec": spec,
        "validated": validated,
        "gpus": gpu.count if gpu else 0,
    }
    name = digest(content)
    metadata = {
        "name": pod_name(app, target.name, name[:8]),
        "namespace": context.namespace,
        "labels": {labels.APP: app, labels.DIGEST: name},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": dict(spec)}  # compact as `pod_spec` is


def pod_name(app: str, node: str, short_digest: str) -> str:
    """Return ``app-node-digest``, with a digest of the node's name in its place where that gets too long."""
    name = f"{app}-{node}-{short_digest}"
    return name if len(name) <= _NAME_LENGTH else f"{app}-{digest(node)}-{short_digest}"


def toolkit_image(context: Context) -> str:
    """Return the toolkit's image; empty if the hosts have their own."""
    toolkit = context.inventory.specs.toolkit
    return toolkit.image.reference if toolkit.enabled else ""


def driver_of(target: Target) -> str:
    """Return the driver image of a node, or the version of the host's own; empty if nothing tells that."""
    return driver.image_of(target) or target.driver.version
