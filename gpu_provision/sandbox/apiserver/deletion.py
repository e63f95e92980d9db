"""What a delete means for an object: gone at once, or marked and held by finalizers or by its kubelet."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import StatusError, invalid_options
from gpu_provision.sandbox.apiserver.objects import at, format_time
from gpu_provision.sandbox.apiserver.resources import ResourceInfo

_FINALIZERS = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}
_POLICIES = ("Foreground", "Background", "Orphan")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How to delete; ``grace_seconds`` None means the object's own period."""

    grace_seconds: int | None = None
    policy: str = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


def parse_delete_options(body: Any) -> DeleteOptions:
    """Read a DeleteOptions object. Raises StatusError 422."""
    given = body if isinstance(body, dict) else {}
    policy = given.get("propagationPolicy") or ("Orphan" if given.get("orphanDependents") else "")
    if policy and policy not in _POLICIES:
        names = ", ".join(f'"{name}"' for name in (*_POLICIES, "nil"))
        text = f'propagationPolicy: Unsupported value: "{policy}": supported values: {names}'
        raise invalid_options(text, "DeleteOptions")
    if given.get("propagationPolicy") and given.get("orphanDependents") is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        text = f'propagationPolicy: Invalid value: "{policy}": {why}'
        raise invalid_options(text, "DeleteOptions")
    conditions = given.get("preconditions") or {}
    return DeleteOptions(
        grace_seconds=given.get("gracePeriodSeconds"),
        policy=policy,
        uid=conditions.get("uid") or "",
        resource_version=conditions.get("resourceVersion") or "",
        dry_run="All" in (given.get("dryRun") or ()),
    )


def check_preconditions(obj: Object, info: ResourceInfo, options: DeleteOptions) -> None:
    """Refuse (409) if the object is not the one that the caller means."""
    metadata = obj["metadata"]
    rows = (
        ("UID", options.uid, metadata["uid"], "deleted and then recreated"),
        ("ResourceVersion", options.resource_version, metadata["resourceVersion"], "modified"),
    )
    for name, given, actual, guess in rows:
        if given and given != actual:
            why = f"the {name} in the precondition ({given}) does not match the {name} in record ({actual})"
            text = f'Operation cannot be fulfilled on {info.kind} "{metadata["name"]}": {why}'
            details = {"name": metadata["name"], "group": info.group, "kind": info.kind}
            known = {key: value for key, value in details.items() if value}
            raise StatusError(409, "Conflict", f"{text}. The object might have been {guess}", details=known)


def mark_deleted(obj: Object, info: ResourceInfo, options: DeleteOptions) -> Object:
    """Return the object as it is once its deletion has been asked for."""
    metadata = dict(obj["metadata"])
    period, before = _grace_period(obj, info, options.grace_seconds), metadata.get("deletionGracePeriodSeconds")
    if before is not None:
        period = min(period, before)
    if not metadata.get("deletionTimestamp") or (before is not None and period < before):
        end = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=period)
        metadata["deletionTimestamp"] = format_time(end)
        if "generation" in metadata and before is None:
            metadata["generation"] += 1
    metadata["deletionGracePeriodSeconds"] = period
    # The pods of a Job stay by default, for the sake of clients that are older than propagation policies.
    policy = options.policy or ("Orphan" if info.storage == "batch/jobs" else "Background")
    if finalizer := _FINALIZERS.get(policy):
        others = [name for name in metadata.get("finalizers") or () if name not in _FINALIZERS.values()]
        metadata["finalizers"] = [*others, finalizer]
    result = {**obj, "metadata": metadata}
    if info.storage == "/namespaces":
        result["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    return result


def _grace_period(obj: Object, info: ResourceInfo, asked: int | None) -> int:
    """Return the seconds that the object's kubelet gets; zero for everything but pods bound to a node."""
    is_over = at(obj, "status", "phase") in ("Succeeded", "Failed")
    if info.storage != "/pods" or not at(obj, "spec", "nodeName") or is_over:
        return 0
    own = at(obj, "spec", "terminationGracePeriodSeconds")
    period = asked if asked is not None else (30 if own is None else own)
    return max(0, int(period))


def is_held(obj: Object, info: ResourceInfo) -> bool:
    """Say whether something keeps an object that is being deleted."""
    metadata = obj["metadata"]
    if metadata.get("finalizers"):
        return True
    if info.storage == "/namespaces":
        return bool(at(obj, "spec", "finalizers"))
    return bool(metadata.get("deletionGracePeriodSeconds"))


def can_be_removed(obj: Object, info: ResourceInfo) -> bool:
    """Say whether an object that is being deleted may go now."""
    return bool(obj["metadata"].get("deletionTimestamp")) and not is_held(obj, info)
