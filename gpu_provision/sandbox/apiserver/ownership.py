"""Who set which field: the door to the field manager."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.fieldmanager import ApplyConflict, ListTypes, same_but_for_times, updated
from gpu_provision.sandbox.apiserver.fieldmanager import applied as applied_by
from gpu_provision.sandbox.apiserver.objects import now
from gpu_provision.sandbox.apiserver.status import StatusError, bad_request

__all__ = ["applied", "recorded", "requested", "same_but_for_times", "wants_reset", "with_fields"]


def recorded(
    old: Object | None, new: Object, manager: str, *, schema: ListTypes | None = None, subresource: str = ""
) -> Object:
    """Return the object after a create, update or patch; what changed belongs to ``manager``."""
    return updated(old, new, manager=manager, subresource=subresource, now=now(), schema=schema)


def with_fields(new: Object, fields: Any) -> Object:
    """Return the object with the given managedFields."""
    if fields:
        new["metadata"]["managedFields"] = fields
    return new


def wants_reset(body: Object) -> bool:
    """Say whether a client asks to forget who owns what: an empty list, or one empty entry."""
    return body["metadata"].get("managedFields") in ([], [{}])


def requested(body: Object, old: Object) -> Any:
    """Return the managedFields from which a write starts: its own if it brings other ones, as the server allows."""
    stored, given = old["metadata"].get("managedFields"), body["metadata"].get("managedFields")
    return stored if not given or given == stored else given


def applied(  # noqa: PLR0913 - the parts of a server-side apply
    live: Object | None,
    config: Object,
    manager: str,
    *,
    force: bool,
    subresource: str = "",
    schema: ListTypes | None = None,
) -> Object:
    """Server-side apply. Raises StatusError 409 with one cause per conflicting field, 400 for a bad configuration."""
    try:
        return applied_by(live, config, manager=manager, force=force, subresource=subresource, now=now(), schema=schema)
    except ApplyConflict as refusal:
        causes = {"causes": refusal.causes()}
        raise StatusError(409, "Conflict", refusal.message(), details=causes) from refusal
    except ValueError as error:
        raise bad_request(str(error)) from error
