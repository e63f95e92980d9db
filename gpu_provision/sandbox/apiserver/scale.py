"""The scale subresource: replicas of deployments, replica sets, stateful sets and custom resources that have it."""

from __future__ import annotations

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.calls import Call, Reply, decoded, reply
from gpu_provision.sandbox.apiserver.objects import at
from gpu_provision.sandbox.apiserver.patches import json_patched, merged
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.status import conflict, invalid, invalid_value
from gpu_provision.sandbox.apiserver.targets import Target

_BUILTIN = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}


def _paths(registry: Registry, call: Call) -> Object:
    return registry.custom.scale_paths(call.info) or _BUILTIN


def _value(obj: Object, path: str) -> int:
    return int(at(obj, *path.strip(".").split(".")) or 0)


def _selector(obj: Object) -> str:
    labels = at(obj, "spec", "selector", "matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _scale(registry: Registry, call: Call, obj: Object) -> Object:
    paths, metadata = _paths(registry, call), obj["metadata"]
    wanted = _value(obj, paths["specReplicasPath"])
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": wanted} if wanted else {},
        "status": {"replicas": _value(obj, paths["statusReplicasPath"]), "selector": _selector(obj)},
    }


def get(registry: Registry, call: Call) -> Reply:
    """Read the scale of an object."""
    return reply(_scale(registry, call, registry.item(call.target).object))


def update(registry: Registry, call: Call) -> Reply:
    """Replace the scale of an object."""
    return _write(registry, call, call.object())


def patch(registry: Registry, call: Call) -> Reply:
    """Patch the scale of an object."""
    item = registry.item(call.target)
    change = json_patched if call.content_type == "application/json-patch+json" else merged
    return _write(registry, call, change(_scale(registry, call, item.object), decoded(call.body)))


def _write(registry: Registry, call: Call, wanted: Object) -> Reply:
    replicas = at(wanted, "spec", "replicas") or 0
    name, given = call.target.name, at(wanted, "metadata", "resourceVersion")
    if not isinstance(replicas, int) or replicas < 0:
        why = "must be greater than or equal to 0"
        raise invalid(call.info, name, [invalid_value("spec.replicas", str(replicas), why)])
    path = _paths(registry, call)["specReplicasPath"].strip(".").split(".")

    def scaled(obj: Object) -> Object:
        if given and given != obj["metadata"]["resourceVersion"]:
            raise conflict(call.info, name)
        nested: Object = {path[-1]: replicas}
        for key in reversed(path[:-1]):
            nested = {key: nested}
        result: Object = merged(obj, nested)
        return result

    item = registry.change(Target(call.info, call.target.namespace, name), scaled, call.write_options())
    return reply(_scale(registry, call, item.object))
