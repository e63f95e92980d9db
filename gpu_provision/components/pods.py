"""Building blocks of pod specs: containers, environment, volumes, mounts, probes, tolerations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_provision.components import labels, quantities
from gpu_provision.components.objects import compact
from gpu_provision.model.cluster import RenderContext
from gpu_provision.model.specs import SecretKey

PRIVILEGED: dict[str, Any] = {"privileged": True}
PRIVILEGED_ROOT: dict[str, Any] = {"privileged": True, "runAsUser": 0}
PRIVILEGED_S0: dict[str, Any] = {"privileged": True, "seLinuxOptions": {"level": "s0"}}
PRIVILEGED_ROOT_S0: dict[str, Any] = PRIVILEGED_S0 | {"runAsUser": 0}
TO_CONTAINER = "HostToContainer"
BOTH_WAYS = "Bidirectional"


class Field(NamedTuple):
    """An environment value that Kubernetes fills in from the pod: ``Field("spec.nodeName")``."""

    path: str


Environment = Mapping[str, "str | Field | SecretKey"]
NODE_NAME = {"NODE_NAME": Field("spec.nodeName")}
OPERATOR_NAMESPACE = {"OPERATOR_NAMESPACE": Field("metadata.namespace")}


def environment(declared: Environment, user: Environment | None = None) -> list[dict[str, Any]]:
    """Return env entries in declared order; the user's values win, and the user's own names follow sorted."""
    user = user or {}
    merged: dict[str, str | Field | SecretKey] = {name: user.get(name, value) for name, value in declared.items()}
    merged |= {name: user[name] for name in sorted(user) if name not in declared}
    return [_entry(name, value) for name, value in merged.items()]


def _entry(name: str, value: str | Field | SecretKey) -> dict[str, Any]:
    if isinstance(value, Field):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value.path}}}
    if isinstance(value, SecretKey):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": value.name, "key": value.key}}}
    return {"name": name, "value": value} if value else {"name": name}  # the server drops an empty value


def container(name: str, image: str, **fields: Any) -> dict[str, Any]:
    """Return a container of fields in Kubernetes' own spelling, ``resources`` in canonical form."""
    if requirements := fields.get("resources"):
        fields["resources"] = quantities.resources(requirements)
    built: dict[str, Any] = compact({"name": name, "image": image, **fields})
    return built


def host_volume(name: str, path: str, kind: str = "") -> dict[str, Any]:
    """Return a hostPath volume; an empty ``kind`` means that the kubelet checks nothing."""
    source = {"path": path} | ({"type": kind} if kind else {})
    return {"name": name, "hostPath": source}


def scratch_volume(name: str) -> dict[str, Any]:
    """Return an empty directory of the pod's own."""
    return {"name": name, "emptyDir": {}}


def config_volume(
    name: str, config_map: str = "", *, mode: int | None = None, items: Iterable[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return a ConfigMap volume named as the ConfigMap, or as given; ``items`` are (key, path) pairs."""
    source = {
        "name": config_map or name,
        "defaultMode": mode,
        "items": [{"key": key, "path": path} for key, path in items],
    }
    return {"name": name, "configMap": compact(source)}


def mount(
    volume: str, path: str, propagation: str = "", *, read_only: bool = False, sub_path: str = ""
) -> dict[str, Any]:
    """Return a volume mount."""
    built: dict[str, Any] = compact(
        {
            "name": volume,
            "mountPath": path,
            "mountPropagation": propagation or None,
            "readOnly": read_only or None,
            "subPath": sub_path or None,
        }
    )
    return built


def port(name: str, number: int) -> dict[str, Any]:
    """Return a container port; the protocol is part of its key, so it is always said."""
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def shell(script: str) -> dict[str, list[str]]:
    """Return command and args that run a line of shell, as the GPU Operator's pods do."""
    return {"command": ["sh", "-c"], "args": [script]}


def pull_secrets(*names: Sequence[str]) -> list[dict[str, str]]:
    """Return imagePullSecrets of several lists of names, each once, in order."""
    return [{"name": name} for name in dict.fromkeys(name for group in names for name in group)]


def tolerations(*groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tolerations of several lists, each once; empty values are left out as the server does."""
    cleaned = [
        {key: value for key, value in entry.items() if value not in (None, "")} for group in groups for entry in group
    ]
    return [entry for index, entry in enumerate(cleaned) if entry not in cleaned[:index]]


STARTUP_TOLERATION: Mapping[str, Any] = {"key": labels.NOT_VALIDATED, "operator": "Exists"}
"""The startup taint, whatever its effect."""


def operand_tolerations(
    context: RenderContext, *more: Iterable[Mapping[str, Any]], first: Iterable[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return what pods tolerate that a node needs for its GPUs: ``first``, the inventory's own, ``more``."""
    declared = context.inventory.specs.daemonsets.tolerations
    return tolerations(first, declared, *more, startup_tolerations(context))


def startup_tolerations(context: RenderContext) -> tuple[Mapping[str, Any], ...]:
    """Return the toleration of the startup taint, if nodes may have it."""
    return (STARTUP_TOLERATION,) if context.inventory.specs.startup_taint.enabled else ()


_KEEPS_PODS_OFF = frozenset({"NoSchedule", "NoExecute"})
_OF_KUBERNETES = "node.kubernetes.io/"  # says what the node's own conditions say; DaemonSets tolerate most of them


def first_untolerated(taints: Iterable[Mapping[str, Any]], tolerations: Iterable[Mapping[str, Any]]) -> str:
    """Return the first taint that keeps pods with these tolerations off a node, as ``team=ml:NoSchedule``; or empty.

    Taints that Kubernetes itself sets for a node's conditions are left out.
    """
    known = tuple(tolerations)
    for taint in taints:
        is_own = str(taint.get("key", "")).startswith(_OF_KUBERNETES)
        if taint.get("effect") in _KEEPS_PODS_OFF and not is_own and not any(_tolerates(one, taint) for one in known):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"{taint.get('key', '')}{value}:{taint['effect']}"
    return ""


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    key, effect = toleration.get("key", ""), toleration.get("effect", "")
    if effect not in {"", taint["effect"]} or key not in {"", taint.get("key", "")}:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(key) and toleration.get("value", "") == taint.get("value", "")
