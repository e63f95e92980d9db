"""Refusals: every error that the API server answers, as the Status object that clients print.

Messages and reasons are those of Kubernetes, since clients and people match on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpu_provision.sandbox.api import ApiError, Object
from gpu_provision.sandbox.apiserver.resources import ResourceInfo


class Cause(NamedTuple):
    """One reason of a refusal: ``reason`` such as FieldValueRequired, ``field`` such as ``spec.selector``."""

    reason: str
    message: str
    field: str = ""


class StatusError(ApiError):
    """A refusal with everything that the Status object carries."""

    def __init__(  # noqa: PLR0913 - the parts of a Status
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Object | None = None,
        metadata: Object | None = None,
        retry_after: int = 0,
    ) -> None:
        """``retry_after`` is in seconds; zero leaves the header out."""
        super().__init__(code, reason, message)
        self.metadata = dict(metadata or {})
        self.details, self.retry_after = dict(details or {}), retry_after
        if retry_after:
            self.details["retryAfterSeconds"] = retry_after

    def status(self) -> Object:
        """Return the Status object."""
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }
        return {key: value for key, value in status.items() if value or key == "metadata"}


def success(info: ResourceInfo, name: str, uid: str) -> Object:
    """Return the Status object of a finished deletion."""
    details = {"name": name, "group": info.group, "kind": info.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


def _details(info: ResourceInfo, name: str, causes: Sequence[Cause] = ()) -> Object:
    details: Object = {"name": name, "group": info.group, "kind": info.plural}
    if causes:
        details["causes"] = [{key: value for key, value in cause._asdict().items() if value} for cause in causes]
    return {key: value for key, value in details.items() if value}


def no_such_path() -> StatusError:
    """404 for a path or resource that nobody serves."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def not_found(info: ResourceInfo, name: str) -> StatusError:
    """404 for an object."""
    return StatusError(404, "NotFound", f'{info.qualified} "{name}" not found', details=_details(info, name))


def already_exists(info: ResourceInfo, name: str) -> StatusError:
    """409 for a create."""
    message = f'{info.qualified} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=_details(info, name))


def conflict(info: ResourceInfo, name: str, why: str = "") -> StatusError:
    """409 for an update whose base is out of date, or for another failed precondition."""
    text = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {info.qualified} "{name}": {text}'
    return StatusError(409, "Conflict", message, details=_details(info, name))


def invalid(info: ResourceInfo, name: str, causes: Sequence[Cause]) -> StatusError:
    """422 with one cause per wrong field."""
    texts = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    kind = f"{info.kind}.{info.group}" if info.group else info.kind
    details = {**_details(info, name, causes), "kind": info.kind}
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)


def forbidden(info: ResourceInfo, name: str, why: str, *, causes: Sequence[Cause] = ()) -> StatusError:
    """403 by a rule of the server itself (admission)."""
    subject = f'{info.qualified} "{name}"' if name else info.qualified
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {why}", details=_details(info, name, causes))


def unauthorized() -> StatusError:
    """401 for a missing or unknown token."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def method_not_allowed(what: str = "") -> StatusError:
    """405."""
    message = what or "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message)


def unsupported_media_type(given: str, accepted: Sequence[str]) -> StatusError:
    """415 for a patch or body type."""
    message = (
        f"the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(accepted)} (got {given or 'none'})"
    )
    return StatusError(415, "UnsupportedMediaType", message)


def not_acceptable() -> StatusError:
    """406 for an Accept header that names nothing the server has."""
    return StatusError(406, "NotAcceptable", "406: Not Acceptable")


def too_large(limit: int) -> StatusError:
    """413 for a body."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def expired_page(token: str) -> StatusError:
    """410 for the token of a page of a list that is forgotten; ``token`` goes on with the present state."""
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list."
    )
    return StatusError(410, "Expired", message, metadata={"continue": token})


def expired(version: int, oldest: int) -> StatusError:
    """410 for a resourceVersion that the history no longer reaches."""
    return StatusError(410, "Expired", f"too old resource version: {version} ({oldest})")


def too_large_version(version: int, current: int) -> StatusError:
    """504 for a resourceVersion that does not exist yet."""
    message = f"Too large resource version: {version}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return StatusError(504, "Timeout", message, details={"causes": causes, "retryAfterSeconds": 1})


def too_many_requests(message: str, *, retry_after: int = 1, causes: Sequence[Cause] = ()) -> StatusError:
    """429, with the seconds to wait."""
    told = [{key: value for key, value in cause._asdict().items() if value} for cause in causes]
    details = {"causes": told} if told else {}
    return StatusError(429, "TooManyRequests", message, details=details, retry_after=retry_after)


def unavailable(message: str) -> StatusError:
    """503."""
    return StatusError(503, "ServiceUnavailable", message)


def required(field: str, message: str = "Required value") -> Cause:
    """Cause: a field that must be set is missing."""
    return Cause("FieldValueRequired", message, field)


def invalid_value(field: str, value: str, why: str) -> Cause:
    """Cause: a field's value is wrong; ``value`` is shown as JSON would show it."""
    return Cause("FieldValueInvalid", f"Invalid value: {value}: {why}", field)


def unsupported_value(field: str, value: str, supported: Sequence[str]) -> Cause:
    """Cause: a field's value is none of the known ones."""
    names = ", ".join(f'"{name}"' for name in supported)
    message = f'Unsupported value: "{value}": supported values: {names}'
    return Cause("FieldValueNotSupported", message, field)
