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
    return {"name": name, "image": IMAGE, "command": list(command or SERVES), **more}


def pod_spec(*containers: Object, **more: Any) -> Object:
    """Return the spec of a pod that ends at once when it is deleted."""
    return {"containers": list(containers or [container()]), "terminationGracePeriodSeconds": 0, **more}


def unready(name: str = "main") -> Object:
    return container(name, *NEVER_READY, readinessProbe=PROBE)


def workload(app: str, spec: Object | None = None, **more: Any) -> Object:
    template = {"metadata": {"labels": {"app": app}}, "spec": spec or pod_spec()}
    return {"selector": {"matchLabels": {"app": app}}, "template": template, **more}


def image_change(image: str) -> Object:
    """Return the merge patch that gives a workload's only container another image."""
    return {"spec": {"template": {"spec": {"containers": [container(image=image)]}}}}


def owner(obj: Object, **more: Any) -> Object:
    found = {key: obj["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], **found, **more}
