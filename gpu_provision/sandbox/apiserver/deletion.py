"""What a delete means for an object: gone at once, or marked and held by finalizers or by its kubelet."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import at, stamp
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import StatusError

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_HOLDS = {"Orphan": ORPHAN, "Foreground": FOREGROUND}
_POLICIES = ("Foreground", "Background", "Orphan")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How to delete; ``grace_seconds`` None means the object's own period."""

    grace_seconds: int | None = None
    policy: str = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


def delete_options(body: Any) -> DeleteOptions:
    """Read a DeleteOptions object. Raises StatusError 400."""
    given = body if isinstance(body, dict) else {}
    policy = given.get("propagationPolicy") or ("Orphan" if given.get("orphanDependents") else "")
    if policy and policy not in _POLICIES:
        text = ", ".join(f'"{name}"' for name in (*_POLICIES, "nil"))
        raise _bad_policy(unsupported=policy, why=f"supported values: {text}")
    if given.get("propagationPolicy") and given.get("orphanDependents") is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        raise _bad_policy(invalid=policy, why=why)
    conditions = given.get("preconditions") or {}
    return DeleteOptions(
        grace_seconds=given.get("gracePeriodSeconds"),
        policy=policy,
        uid=conditions.get("uid") or "",
        resource_version=conditions.get("resourceVersion") or "",
        dry_run="All" in (given.get("dryRun") or ()),
    )


def _bad_policy(*, why: str, unsupported: str = "", invalid: str = "") -> StatusError:
    what = f'Unsupported value: "{unsupported}"' if unsupported else f'Invalid value: "{invalid}"'
    return StatusError(422, "Invalid", f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: {what}: {why}')


def default_policy(info: ResourceInfo, options: DeleteOptions) -> str:
    """Return the propagation policy in force: pods of a Job stay unless the caller says otherwise, as ever since."""
    return options.policy or ("Orphan" if info.storage == "batch/jobs" else "Background")


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


def grace_period(obj: Object, info: ResourceInfo, asked: int | None) -> int:
    """Return the seconds that the object's kubelet gets; zero for everything but pods bound to a node."""
    if info.storage != "/pods":
        return 0
    if not at(obj, "spec", "nodeName") or at(obj, "status", "phase") in ("Succeeded", "Failed"):
        return 0
    own = at(obj, "spec", "terminationGracePeriodSeconds")
    period = asked if asked is not None else (30 if own is None else own)
    return max(0, int(period))


def marked(obj: Object, info: ResourceInfo, options: DeleteOptions, moment: dt.datetime) -> Object:
    """Return the object as it is once its deletion has been asked for."""
    metadata = dict(obj["metadata"])
    period = grace_period(obj, info, options.grace_seconds)
    before = metadata.get("deletionGracePeriodSeconds")
    if before is not None:
        period = min(period, before)
    if not metadata.get("deletionTimestamp") or (before is not None and period < before):
        metadata["deletionTimestamp"] = stamp(moment + dt.timedelta(seconds=period))
        if "generation" in metadata and before is None:
            metadata["generation"] += 1
    metadata["deletionGracePeriodSeconds"] = period
    if hold := _HOLDS.get(default_policy(info, options)):
        others = [name for name in metadata.get("finalizers") or () if name not in _HOLDS.values()]
        metadata["finalizers"] = [*others, hold]
    result = {**obj, "metadata": metadata}
    if info.storage == "/namespaces":
        result["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    return result


def held(obj: Object, info: ResourceInfo) -> bool:
    """Say whether something keeps an object that is being deleted."""
    metadata = obj["metadata"]
    if metadata.get("finalizers"):
        return True
    if info.storage == "/namespaces":
        return bool(at(obj, "spec", "finalizers"))
    return bool(metadata.get("deletionGracePeriodSeconds"))


def finished(obj: Object, info: ResourceInfo) -> bool:
    """Say whether an object that is being deleted may go now."""
    return bool(obj["metadata"].get("deletionTimestamp")) and not held(obj, info)
