"""Strategy of all kinds for writes and deletions: metadata, subresources, generations, finalizers."""

from __future__ import annotations

import datetime as dt
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import errors
from gpu_provision.sandbox.apiserver.admission import admit, check_namespace, set_defaults
from gpu_provision.sandbox.apiserver.custom_resources import complete_object, schema_causes
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.apiserver.validation import change_causes, object_causes
from gpu_provision.sandbox.objects import format_time, timestamp, value_at

_FINALIZERS = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}
_POLICIES = ("Foreground", "Background", "Orphan")
_SUFFIX_LETTERS, _SUFFIX_LENGTH, _MAX_PREFIX = "bcdfghjklmnpqrstvwxz2456789", 5, 58
_EMPTY_IS_ABSENT = ("managedFields", "finalizers", "ownerReferences", "labels", "annotations")
_CREATED_WITH_STATUS = frozenset({"/nodes"})  # kubelets register nodes with a status
# Metadata that no client may change; the server copies them from the stored object.
_DELETED_AT = ("deletionTimestamp", "deletionGracePeriodSeconds")
_SERVER_FIELDS = ("uid", "creationTimestamp", *_DELETED_AT, "generation", "selfLink")


def prepare_new(store: Store, obj: Object, info: ResourceInfo) -> None:
    """Complete and check a new object in place. Raises StatusError."""
    check_namespace(store, info, obj)
    if info.has_status and info.storage not in _CREATED_WITH_STATUS:
        obj.pop("status", None)
    _initialize_metadata(obj, info)
    with _refuse_bad_shape(obj):
        complete_object(obj, info)
        set_defaults(obj, info)
        admit(store, info, obj, is_new=True)
    if info.initial_status is not None:
        obj["status"] = {**info.initial_status, **(obj.get("status") or {})}
    _check(obj, info, None)


def prepare_changed(store: Store, info: ResourceInfo, old: Object, body: Object, subresource: str) -> Object:
    """Return ``old`` after a write of ``body`` through a subresource. Raises StatusError."""
    new = _write_part(old, body, info, subresource)
    _preserve_server_fields(old, new)
    if not subresource:
        with _refuse_bad_shape(new):
            complete_object(new, info)
            set_defaults(new, info)
            admit(store, info, new, is_new=False)
    for field in _EMPTY_IS_ABSENT:
        if not new["metadata"].get(field):
            new["metadata"].pop(field, None)
    if subresource != "status" or info.custom:
        _check(new, info, old)
    if info.counts_generations and _desired_state(old, info) != _desired_state(new, info):
        new["metadata"]["generation"] = (value_at(old, "metadata", "generation") or 0) + 1
    return new


def _check(obj: Object, info: ResourceInfo, old: Object | None) -> None:
    with _refuse_bad_shape(obj):
        changes = change_causes(old, obj, info) if old else ()
        causes = [*changes, *object_causes(obj, info), *schema_causes(obj, info)]
    if causes:
        raise errors.invalid(info, obj["metadata"]["name"], causes)


@contextmanager
def _refuse_bad_shape(obj: Object) -> Iterator[None]:
    """Refuse (400) an object with a scalar in place of an object or a list."""
    try:
        yield
    except (AttributeError, TypeError, KeyError) as error:
        kind, version = obj.get("kind"), obj.get("apiVersion")
        refusal = f'{kind} in version "{version}" cannot be handled as a {kind}'
        errors.refuse(f"{refusal}: a field has the wrong type: {error}")


def check_identity(obj: Any, info: ResourceInfo, namespace: str) -> None:
    """Check kind, apiVersion and namespace of a body against its path, or set them. Raises StatusError 400."""
    if not isinstance(obj, dict):
        errors.refuse(f"the body is no object: a {info.kind} is expected")
    given = (obj.setdefault("apiVersion", info.api_version), obj.setdefault("kind", info.kind))
    if given != (info.api_version, info.kind):
        message = (
            f'no kind "{given[1]}" is registered for version "{given[0]}" at this path: '
            f"{info.kind} in {info.api_version} is expected"
        )
        errors.refuse(message)
    metadata = obj.setdefault("metadata", {})
    texts = ("name", "generateName", "namespace", "uid", "resourceVersion")
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(name, ""), str | None) for name in texts):
        refusal = f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}'
        errors.refuse(f"{refusal}: json: cannot unmarshal into Go struct field ObjectMeta.metadata")
    if not info.namespaced:
        metadata.pop("namespace", None)
    elif (metadata.get("namespace") or namespace) != namespace:
        errors.refuse("the namespace of the provided object does not match the namespace sent on the request")
    else:
        metadata["namespace"] = namespace


def check_name(obj: Object, name: str) -> None:
    """Check the name of a body against its path, or set it. Raises StatusError 400."""
    if obj["metadata"].setdefault("name", name) != name:
        errors.refuse(f"the name of the object ({obj['metadata']['name']}) does not match the name on the URL ({name})")


def check_version(old: Object, new: Object, info: ResourceInfo) -> None:
    """Refuse (409) a write with another resourceVersion than the stored one."""
    version = new["metadata"].get("resourceVersion")
    if version and version != old["metadata"]["resourceVersion"]:
        raise errors.conflict(info, old["metadata"]["name"])


def _initialize_metadata(obj: Object, info: ResourceInfo) -> None:
    """Set name, uid, time and generation of a new object. Raises StatusError 422 without a name."""
    metadata = obj["metadata"]
    if not metadata.get("name"):
        prefix = metadata.get("generateName")
        if not prefix:
            cause = errors.required("metadata.name", "Required value: name or generateName is required")
            raise errors.invalid(info, "", [cause])
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
        metadata["name"] = prefix[:_MAX_PREFIX] + suffix
    for field in (*_SERVER_FIELDS, "resourceVersion"):
        metadata.pop(field, None)
    metadata["uid"], metadata["creationTimestamp"] = str(uuid.uuid4()), timestamp()
    if info.counts_generations:
        metadata["generation"] = 1


def _preserve_server_fields(old: Object, new: Object) -> None:
    before, after = old["metadata"], new["metadata"]
    for field in _SERVER_FIELDS:
        after.pop(field, None)
    after |= {field: before[field] for field in (*_SERVER_FIELDS, "name", "resourceVersion") if field in before}
    if after.get("generateName") is None and before.get("generateName"):
        after["generateName"] = before["generateName"]


def _write_part(old: Object, body: Object, info: ResourceInfo, subresource: str) -> Object:
    """Return the object after a write of ``body`` through a subresource; shares values with both."""
    match subresource:
        case "status":
            metadata = dict(old["metadata"] if info.custom else body["metadata"])
            return {**old, "metadata": metadata, "status": body.get("status") or {}}
        case "finalize":
            spec = {**(old.get("spec") or {}), "finalizers": (body.get("spec") or {}).get("finalizers") or []}
            return {**old, "metadata": dict(old["metadata"]), "spec": spec}
        case "binding":
            return body
    new = dict(body)
    if info.has_status:
        new.pop("status", None)
        new |= {"status": old["status"]} if "status" in old else {}
    if info.storage == "/namespaces":
        new["spec"] = old["spec"]
    return new


def _desired_state(obj: Object, info: ResourceInfo) -> Object:
    """Return the part that ``metadata.generation`` counts: all but metadata and a status with a subresource."""
    hidden = ("metadata",) if info.custom and not info.has_status else ("metadata", "status")
    return {key: value for key, value in obj.items() if key not in hidden}


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Parameters of a deletion; ``grace_seconds`` None means the object's own period."""

    grace_seconds: int | None = None
    policy: str = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


def parse_delete_options(body: Any) -> DeleteOptions:
    """Read a DeleteOptions object. Raises StatusError 422."""
    options = body if isinstance(body, dict) else {}
    policy = options.get("propagationPolicy") or ""
    if policy and policy not in _POLICIES:
        message = errors.unsupported_value("propagationPolicy", policy, (*_POLICIES, "nil")).message
        errors.refuse_options(f"propagationPolicy: {message}", "DeleteOptions")
    conditions = options.get("preconditions") or {}
    return DeleteOptions(
        grace_seconds=options.get("gracePeriodSeconds"),
        policy=policy,
        uid=conditions.get("uid") or "",
        resource_version=conditions.get("resourceVersion") or "",
        dry_run="All" in (options.get("dryRun") or ()),
    )


def check_preconditions(obj: Object, info: ResourceInfo, options: DeleteOptions) -> None:
    """Refuse (409) an object that does not meet the preconditions."""
    metadata = obj["metadata"]
    rows = (
        ("UID", options.uid, metadata["uid"], "deleted and then recreated"),
        ("ResourceVersion", options.resource_version, metadata["resourceVersion"], "modified"),
    )
    for name, given, actual, guess in rows:
        if given and given != actual:
            why = f"the {name} in the precondition ({given}) does not match the {name} in record ({actual})"
            text = f'Operation cannot be fulfilled on {info.kind} "{metadata["name"]}": {why}'
            details = {"name": metadata["name"], "kind": info.kind} | ({"group": info.group} if info.group else {})
            raise errors.StatusError(409, "Conflict", f"{text}. The object might have been {guess}", details=details)


def set_deletion_timestamp(obj: Object, info: ResourceInfo, options: DeleteOptions) -> Object:
    """Return the object with its deletionTimestamp and the finalizers of the deletion."""
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
    # The pods of a Job stay by default, for clients older than propagation policies.
    policy = options.policy or ("Orphan" if info.storage == "batch/jobs" else "Background")
    if finalizer := _FINALIZERS.get(policy):
        others = [name for name in metadata.get("finalizers") or () if name not in _FINALIZERS.values()]
        metadata["finalizers"] = [*others, finalizer]
    result = {**obj, "metadata": metadata}
    if info.storage == "/namespaces":
        result["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    return result


def _grace_period(obj: Object, info: ResourceInfo, asked: int | None) -> int:
    """Return the grace period in seconds; zero for all but pods bound to a node."""
    is_over = value_at(obj, "status", "phase") in ("Succeeded", "Failed")
    if info.storage != "/pods" or not value_at(obj, "spec", "nodeName") or is_over:
        return 0
    own = value_at(obj, "spec", "terminationGracePeriodSeconds")
    period = asked if asked is not None else (30 if own is None else own)
    return max(0, int(period))


def is_held(obj: Object, info: ResourceInfo) -> bool:
    """Whether finalizers or a grace period block the removal of a deleted object."""
    own = (
        value_at(obj, "spec", "finalizers")
        if info.storage == "/namespaces"
        else value_at(obj, "metadata", "deletionGracePeriodSeconds")
    )
    return bool(obj["metadata"].get("finalizers") or own)


def can_be_removed(obj: Object, info: ResourceInfo) -> bool:
    """Whether a deleted object can be removed now."""
    return bool(obj["metadata"].get("deletionTimestamp")) and not is_held(obj, info)
