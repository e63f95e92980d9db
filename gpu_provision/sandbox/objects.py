"""Kubernetes objects as plain dicts: built-in kinds, quantities, selectors, times, conditions, ownership.

Convention: an object that is in a store is never changed again; to change one, copy it first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple, TypeVar

from gpu_provision.sandbox.api import Object

Key = tuple[str, str]
_T = TypeVar("_T")


def key_of(obj: Object) -> Key:
    """Return (namespace, name); the namespace of objects of cluster scope is empty."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def value_at(value: Any, *path: str) -> Any:
    """Return what lies under a path of keys, or None."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def to_json(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def deep_copy(value: _T) -> _T:
    """Return a deep copy of a JSON value (several times faster than copy.deepcopy)."""
    found: Any = value
    if type(found) is dict:
        found = {
            key: deep_copy(item) if type(item) is dict or type(item) is list else item for key, item in found.items()
        }
    elif type(found) is list:
        found = [deep_copy(item) if type(item) is dict or type(item) is list else item for item in found]
    return found  # type: ignore[no-any-return]


Amounts = dict[str, int]
"""Resource name -> amount: cpu in thousandths of a core, all else in whole units."""

_SUFFIXES: Mapping[str, Fraction] = {
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate(("m", "u", "n"), 1)},
}


@lru_cache(maxsize=4096)
def quantity(written: str) -> Fraction:
    """Read ``100m``, ``4Gi``, ``1e3`` or ``2``. Raises ValueError."""
    for length in (2, 1):
        factor = _SUFFIXES.get(written[-length:])
        if factor is not None and len(written) > length:
            return Fraction(written[:-length]) * factor
    return Fraction(written)


def amounts(written: Mapping[str, str | int] | None) -> Amounts:
    """Read a resource list; amounts that are no quantities count as 0."""
    result: Amounts = {}
    for resource, value in (written or {}).items():
        try:
            result[resource] = ceil(quantity(str(value)) * (1000 if resource == "cpu" else 1))
        except (ValueError, ZeroDivisionError):
            result[resource] = 0
    return result


def combine_amounts(parts: Iterable[Amounts], how: Callable[[int, int], int]) -> Amounts:
    """Return resource lists as one: ``operator.add`` adds amounts up, ``max`` takes the largest."""
    result: Amounts = {}
    for part in parts:
        for resource, amount in part.items():
            result[resource] = how(result.get(resource, 0), amount)
    return result


Labels = Mapping[str, str]

_OPERATORS: Mapping[str, Callable[[str | None, Collection[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _compare(value, values) > 0,
    "Lt": lambda value, values: _compare(value, values) < 0,
}


def _compare(value: str | None, values: Collection[str]) -> int:
    try:
        return int(value or "") - int(next(iter(values), ""))
    except ValueError:
        return 0


def matches_operator(operator: str, value: str | None, values: Collection[str]) -> bool:
    """Whether a label's value meets a requirement; an unknown operator is never met."""
    check = _OPERATORS.get(operator)
    return check is not None and check(value, values)


def requirement_matches(requirement: Mapping[str, Any], labels: Labels) -> bool:
    """Whether the labels meet one ``{key, operator, values}``."""
    return matches_operator(requirement["operator"], labels.get(requirement["key"]), requirement.get("values") or ())


def includes_labels(wanted: Labels | None, labels: Labels) -> bool:
    """Whether all wanted pairs are among the labels."""
    return all(labels.get(key) == value for key, value in (wanted or {}).items())


def matches_selector(selector: Mapping[str, Any] | None, labels: Labels) -> bool:
    """Whether a LabelSelector selects these labels; None selects nothing, an empty one everything."""
    if selector is None:
        return False
    return includes_labels(selector.get("matchLabels"), labels) and all(
        requirement_matches(one, labels) for one in selector.get("matchExpressions") or ()
    )


def now() -> datetime:
    """Return the present time in UTC."""
    return datetime.now(UTC)


def format_time(moment: datetime) -> str:
    """Return RFC 3339 in whole seconds, as metav1.Time is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp() -> str:
    """Return the present time as metav1.Time is written."""
    return format_time(now())


def parse_time(written: str | None) -> datetime | None:
    """Read RFC 3339, with or without fractions; None for nothing."""
    return datetime.fromisoformat(written) if written else None


def seconds_since(written: str | None, moment: datetime) -> float:
    """Return the seconds from ``written`` to ``moment``; 0 if nothing is written."""
    then = parse_time(written)
    return (moment - then).total_seconds() if then else 0.0


_SAFE_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def name(obj: Object) -> str:
    """Return metadata.name."""
    return str(obj["metadata"]["name"])


def namespace(obj: Object) -> str:
    """Return metadata.namespace, empty for cluster scope."""
    return obj["metadata"].get("namespace") or ""


def uid(obj: Object) -> str:
    """Return metadata.uid."""
    return obj["metadata"].get("uid") or ""


def labels(obj: Object) -> dict[str, str]:
    """Return the labels, read-only for the caller."""
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Object) -> dict[str, str]:
    """Return the annotations, read-only for the caller."""
    return obj["metadata"].get("annotations") or {}


def finalizers(obj: Object) -> list[str]:
    """Return metadata.finalizers."""
    return obj["metadata"].get("finalizers") or []


def status(obj: Object) -> dict[str, Any]:
    """Return the status, read-only for the caller."""
    return obj.get("status") or {}


def is_deleting(obj: Object) -> bool:
    """Whether the object has a deletionTimestamp."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def creation_timestamp(obj: Object) -> str:
    """Return metadata.creationTimestamp; RFC 3339 texts sort by age."""
    return obj["metadata"].get("creationTimestamp") or ""


def owners(obj: Object) -> list[dict[str, Any]]:
    """Return metadata.ownerReferences."""
    return obj["metadata"].get("ownerReferences") or []


def controller_of(obj: Object) -> dict[str, Any] | None:
    """Return the owner reference that has ``controller: true``."""
    return next((owner for owner in owners(obj) if owner.get("controller")), None)


def controller_uid(obj: Object) -> str:
    """Return the uid of the controlling owner; empty for an orphan."""
    owner = controller_of(obj)
    return owner["uid"] if owner else ""


def reference(obj: Object) -> Object:
    """Return the ObjectReference to an object, as events name what they are about."""
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "namespace": namespace(obj),
        "name": name(obj),
        "uid": uid(obj),
        "resourceVersion": obj["metadata"].get("resourceVersion", ""),
    }


def controller_ref(obj: Object) -> dict[str, Any]:
    """Return the owner reference that makes ``obj`` the controller of a new object."""
    named = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": name(obj), "uid": uid(obj)}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def condition(obj: Object, kind: str) -> dict[str, Any] | None:
    """Return the condition of this type."""
    return next((one for one in status(obj).get("conditions") or () if one["type"] == kind), None)


def has_condition(obj: Object, kind: str) -> bool:
    """Whether the condition of this type is True."""
    return (condition(obj, kind) or {}).get("status") == "True"


class ConditionUpdate(NamedTuple):
    """What a condition is to say; ``state`` is "True", "False" or "Unknown"."""

    kind: str
    state: str
    reason: str
    message: str = ""


def set_conditions(obj: Object, moment: datetime, *wanted: ConditionUpdate) -> list[dict[str, Any]]:
    """Return an object's conditions with these ones set; a transition time moves only when its status does."""
    found: list[dict[str, Any]] = list(status(obj).get("conditions") or ())
    for update in wanted:
        present = next((one for one in found if one["type"] == update.kind), None)
        new = {"type": update.kind, "status": update.state, "reason": update.reason, "message": update.message}
        if present is None:
            found.append({**new, "lastTransitionTime": format_time(moment)})
        elif not new.items() <= present.items():
            kept = present["lastTransitionTime"] if present["status"] == update.state else format_time(moment)
            found[found.index(present)] = {**present, **new, "lastTransitionTime": kept}
    return found


def container_statuses(pod: Object) -> list[dict[str, Any]]:
    """Return the statuses of init containers and containers."""
    of_pod = status(pod)
    return [*(of_pod.get("initContainerStatuses") or ()), *(of_pod.get("containerStatuses") or ())]


def phase(pod: Object) -> str:
    """Return the pod's phase."""
    return status(pod).get("phase") or "Pending"


def is_finished(pod: Object) -> bool:
    """Whether the pod has Succeeded or Failed."""
    return phase(pod) in {"Succeeded", "Failed"}


def is_active(pod: Object) -> bool:
    """Whether the pod counts as one that works: neither finished nor being deleted."""
    return not is_finished(pod) and not is_deleting(pod)


def is_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is True."""
    return has_condition(pod, "Ready")


def node_of(pod: Object) -> str:
    """Return spec.nodeName, empty while unbound."""
    return pod["spec"].get("nodeName") or ""


def pod_from_template(template: Mapping[str, Any], owner: Object) -> Object:
    """Return a new pod of a template, controlled by ``owner`` and named after it by the server."""
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name(owner)}-",
            "labels": dict(metadata.get("labels") or {}),
            "annotations": dict(metadata.get("annotations") or {}),
            "finalizers": list(metadata.get("finalizers") or []),
            "ownerReferences": [controller_ref(owner)],
        },
        "spec": deep_copy(template["spec"]),
    }


def stable_hash(value: Any) -> str:
    """Return ten letters that depend on the value only, in the alphabet of Kubernetes' own names."""
    written = json.dumps(value, sort_keys=True, separators=(",", ":"))
    digest = int.from_bytes(hashlib.sha256(written.encode()).digest(), "big")
    base = len(_SAFE_ALPHABET)
    return "".join(_SAFE_ALPHABET[digest // base**place % base] for place in range(10))


def resolve_percentage(value: int | str | None, total: int, *, up: bool, default: int | str) -> int:
    """Resolve a number or percentage of ``total``, rounded ``up`` or down."""
    chosen = default if value is None else value
    if isinstance(chosen, int):
        return chosen
    if not chosen.endswith("%"):
        return int(chosen)
    product = int(chosen[:-1]) * total
    return -(-product // 100) if up else product // 100


_WAITING_REASONS = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}


def explain_missing_log(container: str, pod: str, reason: str) -> str:
    """Return the refusal; ``reason`` is what the container waits for, as its status says."""
    why = _WAITING_REASONS.get(reason, reason or "ContainerCreating")
    return f'container "{container}" in pod "{pod}" is waiting to start: {why}'
