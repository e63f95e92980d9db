"""The manifests of the controllers' half of the contract, as short as they can be."""

from __future__ import annotations

from typing import Any

from tests.contract.client import Object

IMAGE = "registry.example/tools/busybox:1.36"
MISSING_IMAGE = "registry.example/tools/no-such-image:1"
SERVES = ("sleep", "infinity")
NEVER_READY = ("sh", "-c", "until [ -f /nowhere/here ]; do sleep 1; done")
PROBE = {"exec": {"command": ["true"]}}


def container(name: str = "main", *command: str, **more: Any) -> Object:
    """Return a container that serves for ever unless told otherwise."""
    return {"name": name, "image": IMAGE, "command": list(command or SERVES), **more}


def pod_spec(*containers: Object, **more: Any) -> Object:
    """Return the spec of a pod that ends at once when it is deleted."""
    return {"containers": list(containers or [container()]), "terminationGracePeriodSeconds": 0, **more}


def unready(name: str = "main") -> Object:
    """Return a container that runs and never gets ready."""
    return container(name, *NEVER_READY, readinessProbe=PROBE)


def template(app: str, spec: Object | None = None, **labels: str) -> Object:
    """Return a pod template with a label ``app``."""
    return {"metadata": {"labels": {"app": app, **labels}}, "spec": spec or pod_spec()}


def workload(app: str, spec: Object | None = None, **more: Any) -> Object:
    """Return the spec of a DaemonSet, Deployment or ReplicaSet whose pods have a label ``app``."""
    return {"selector": {"matchLabels": {"app": app}}, "template": template(app, spec), **more}


def image_change(image: str) -> Object:
    """Return the merge patch that gives a workload's only container another image."""
    return {"spec": {"template": {"spec": {"containers": [container(image=image)]}}}}


def owner(obj: Object, **more: Any) -> Object:
    """Return a reference to an owner."""
    metadata = obj["metadata"]
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        **more,
    }
