"""The metadata that belongs to the server: names, uids, times and generations."""

from __future__ import annotations

import secrets
import uuid
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import now
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import StatusError, bad_request, conflict, required
from gpu_provision.sandbox.apiserver.status import invalid as invalid_object

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = 5
_LONGEST_BASE = 58
# What a client may not change; the server copies these from the stored object.
_SERVER_FIELDS = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)


def generated(prefix: str) -> str:
    """Return a name for ``metadata.generateName``: the prefix and five letters that form no words."""
    return prefix[:_LONGEST_BASE] + "".join(secrets.choice(_LETTERS) for _ in range(_SUFFIX))


def checked_identity(obj: Any, info: ResourceInfo, namespace: str) -> None:
    """Make kind, apiVersion and namespace of a body agree with its path. Raises StatusError 400."""
    if not isinstance(obj, dict):
        message = f"the body is no object: a {info.kind} is expected"
        raise bad_request(message)
    given = (obj.setdefault("apiVersion", info.api_version), obj.setdefault("kind", info.kind))
    if given != (info.api_version, info.kind):
        message = (
            f'no kind "{given[1]}" is registered for version "{given[0]}" at this path: '
            f"{info.kind} in {info.api_version} is expected"
        )
        raise bad_request(message)
    metadata = obj.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        message = "metadata is no object"
        raise bad_request(message)
    for field in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        if not isinstance(metadata.get(field, ""), str | None):
            message = (
                f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}: json: cannot unmarshal '
                f"into Go struct field ObjectMeta.metadata.{field} of type string"
            )
            raise bad_request(message)
    _checked_namespace(metadata, info, namespace)


def _checked_namespace(metadata: Object, info: ResourceInfo, namespace: str) -> None:
    if not info.namespaced:
        metadata.pop("namespace", None)
        return
    given = metadata.get("namespace") or namespace
    if given != namespace:
        message = "the namespace of the provided object does not match the namespace sent on the request"
        raise bad_request(message)
    metadata["namespace"] = namespace


def checked_name(obj: Object, name: str) -> None:
    """Make the name of a body agree with its path. Raises StatusError 400."""
    if obj["metadata"].setdefault("name", name) != name:
        message = f"the name of the object ({obj['metadata']['name']}) does not match the name on the URL ({name})"
        raise bad_request(message)


def start(obj: Object, info: ResourceInfo) -> None:
    """Give a new object its name, uid, time and generation. Raises StatusError 422 without a name."""
    metadata = obj["metadata"]
    if not metadata.get("name"):
        prefix = metadata.get("generateName")
        if not prefix:
            raise invalid_object(
                info, "", [required("metadata.name", "Required value: name or generateName is required")]
            )
        metadata["name"] = generated(prefix)
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"):
        metadata.pop(field, None)
    metadata["uid"], metadata["creationTimestamp"] = str(uuid.uuid4()), now()
    metadata.pop("generation", None)
    if info.counts_generations:
        metadata["generation"] = 1


def carry_over(old: Object, new: Object) -> None:
    """Keep what only the server may set."""
    before, after = old["metadata"], new["metadata"]
    for field in _SERVER_FIELDS:
        if field in before:
            after[field] = before[field]
        else:
            after.pop(field, None)
    after["name"], after["resourceVersion"] = before["name"], before["resourceVersion"]
    if after.get("generateName") is None and before.get("generateName"):
        after["generateName"] = before["generateName"]


def desired_state(obj: Object, *, without_status: bool) -> Object:
    """Return what ``metadata.generation`` counts: everything but metadata (and status)."""
    hidden = ("metadata", "status") if without_status else ("metadata",)
    return {key: value for key, value in obj.items() if key not in hidden}


def checked_version(old: Object, new: Object, info: ResourceInfo) -> StatusError | None:
    """Return the refusal if ``new`` was made from another version than ``old``."""
    given = new["metadata"].get("resourceVersion")
    if given and given != old["metadata"]["resourceVersion"]:
        return conflict(info, old["metadata"]["name"])
    return None
