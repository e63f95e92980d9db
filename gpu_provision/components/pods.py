"""Building blocks of pod specs: containers, environment, quantities, volumes, mounts, scripts, tolerations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_UP, Decimal, localcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpu_provision.components import labels
from gpu_provision.components.objects import compact
from gpu_provision.model.cluster import RenderContext
from gpu_provision.model.operand_specs import ContainerSpec, SecretKey

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


def container(name: str, spec: ContainerSpec, *, image: str = "", **fields: Any) -> dict[str, Any]:
    """Return a container of fields in Kubernetes' spelling, ``resources`` in canonical form.

    ``image`` replaces that of the spec.
    """
    if requirements := fields.get("resources"):
        fields["resources"] = resources(requirements)
    image = image or spec.image.reference
    built: dict[str, Any] = compact({"name": name, "image": image, "imagePullPolicy": spec.image_pull_policy, **fields})
    return built


def host_volume(name: str, path: str, kind: str = "") -> dict[str, Any]:
    """Return a hostPath volume; with an empty ``kind`` the kubelet does not check the path."""
    source = {"path": path} | ({"type": kind} if kind else {})
    return {"name": name, "hostPath": source}


def config_volume(
    name: str, config_map: str = "", *, mode: int | None = None, items: Iterable[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return a ConfigMap volume named as the ConfigMap, or as given; ``items`` are (key, path) pairs."""
    paths = [{"key": key, "path": path} for key, path in items]
    return {"name": name, "configMap": compact({"name": config_map or name, "defaultMode": mode, "items": paths})}


def mount(
    volume: str, path: str, propagation: str = "", *, read_only: bool = False, sub_path: str = ""
) -> dict[str, Any]:
    """Return a volume mount."""
    optional = {"mountPropagation": propagation, "readOnly": read_only, "subPath": sub_path}
    return {"name": volume, "mountPath": path, **{key: value for key, value in optional.items() if value}}


def port(name: str, number: int) -> dict[str, Any]:
    """Return a container port; the protocol is part of its key, so it is always set."""
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def shell(script: str) -> dict[str, Any]:
    """Return command and args that run a line of shell, as the GPU Operator's pods do."""
    return {"command": ["sh", "-c"], "args": [script]}


@cache
def script(*names: str) -> str:
    """Return files of ``scripts`` one after the other.

    They need only a POSIX shell and coreutils, and do the same steps as the GPU Operator's scripts.
    """
    folder = Path(__file__).with_name("scripts")
    return "".join((folder / f"{name}.sh").read_text(encoding="utf-8") for name in names)


def pull_secrets(*specs: ContainerSpec) -> list[dict[str, str]]:
    """Return the imagePullSecrets of several specs, each once, in order."""
    return [{"name": name} for name in dict.fromkeys(name for spec in specs for name in spec.image_pull_secrets)]


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
    """Return the tolerations of operands: ``first``, ``daemonsets.tolerations``, ``more``, the startup taint."""
    declared = context.inventory.specs.daemonsets.tolerations
    return tolerations(first, declared, *more, startup_tolerations(context))


def startup_tolerations(context: RenderContext) -> tuple[Mapping[str, Any], ...]:
    """Return the toleration of the startup taint, if nodes may have it."""
    return (STARTUP_TOLERATION,) if context.inventory.specs.startup_taint.enabled else ()


_KEEPS_PODS_OFF = frozenset({"NoSchedule", "NoExecute"})
_OF_KUBERNETES = "node.kubernetes.io/"  # taints of node conditions; DaemonSets tolerate most of them


def first_untolerated_taint(taints: Iterable[Mapping[str, Any]], tolerations: Iterable[Mapping[str, Any]]) -> str:
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


# A server parses ``0.5`` and writes ``500m``; a client that sends ``0.5`` always sees a difference. The rules
# are those of apimachinery's ``resource.Quantity`` in a list of resources: no fraction, the largest suffix that needs
# none, the notation of the input, rounded up to thousandths, at most 2^63 - 1 in binary notation.
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d+))?")
_MIN_QUANTITY = Decimal("1e-3")
_MAX_QUANTITY = Decimal(2**63 - 1)


def canonical_quantity(quantity: str | float) -> str:
    """Return the canonical form of a quantity: ``0.5`` -> ``500m``, ``1024Mi`` -> ``1Gi``, ``2`` -> ``2``.

    Raises ValueError if it is none.
    """
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if match is None:
        message = f"{quantity!r} is not a Kubernetes quantity"
        raise ValueError(message)
    with localcontext(prec=60):
        number, suffix, exponent = Decimal(match[1]), match[2] or "", match[3]
        if suffix in _BINARY:
            return _format_binary(min(_round_up(number * 1024 ** _BINARY[suffix]), _MAX_QUANTITY))
        value = _round_up(number.scaleb(int(exponent) if exponent else _DECIMAL[suffix]))
        return _format_decimal(value, with_exponent=exponent is not None)


def resources(requirements: Mapping[str, Any]) -> dict[str, Any]:
    """Return container resources with every quantity of ``limits`` and ``requests`` in canonical form."""
    return {
        key: {name: canonical_quantity(quantity) for name, quantity in value.items()}
        if key in {"limits", "requests"} and value
        else value
        for key, value in requirements.items()
    }


def _round_up(value: Decimal) -> Decimal:
    return value.quantize(_MIN_QUANTITY, rounding=ROUND_UP) if value % _MIN_QUANTITY else value


def _format_binary(value: Decimal) -> str:
    if abs(value) < 1024 or value != int(value):  # noqa: PLR2004 -- the server itself turns to decimal below 1 Ki
        return _format_decimal(value, with_exponent=False)
    whole, power = int(value), 0
    while whole % 1024 == 0 and power < len(_BINARY):
        whole, power = whole // 1024, power + 1
    return f"{whole}{['', *_BINARY][power]}"


def _format_decimal(value: Decimal, *, with_exponent: bool) -> str:
    if not value:
        return "0"
    for suffix, power in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        scaled = value.scaleb(-power)
        if scaled == int(scaled):
            ending = f"e{power}" if power else ""
            return f"{int(scaled)}{ending if with_exponent else suffix}"
    raise AssertionError(value)  # unreachable: rounded to thousandths before
