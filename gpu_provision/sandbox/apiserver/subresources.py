"""Which part of an object a write may change: everything but status, or only what its subresource names."""

from __future__ import annotations

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.resources import ResourceInfo


def restricted(old: Object, body: Object, info: ResourceInfo, subresource: str) -> Object:
    """Return the object after a write of ``body`` through a subresource; shares values with both."""
    match subresource:
        case "status":
            return _status(old, body, info)
        case "finalize":
            spec = {**(old.get("spec") or {}), "finalizers": (body.get("spec") or {}).get("finalizers") or []}
            return {**old, "metadata": dict(old["metadata"]), "spec": spec}
        case "ephemeralcontainers":
            spec = {**old["spec"], "ephemeralContainers": body["spec"].get("ephemeralContainers")}
            return {**old, "metadata": dict(old["metadata"]), "spec": spec}
        case "binding":
            return body
        case _:
            return _main(old, body, info)


def _status(old: Object, body: Object, info: ResourceInfo) -> Object:
    own = old["metadata"] if info.custom else body["metadata"]
    metadata = {**own, "managedFields": body["metadata"].get("managedFields")}
    return {**old, "metadata": metadata, "status": body.get("status") or {}}


def _main(old: Object, body: Object, info: ResourceInfo) -> Object:
    new = dict(body)
    if info.has_status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    if info.storage == "/namespaces":
        new["spec"] = old["spec"]
    return new
