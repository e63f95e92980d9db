"""The errors of the API server as Status objects, with the messages and reasons of Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from gpu_provision.sandbox.api import ApiError, Object
from gpu_provision.sandbox.apiserver.resources import ResourceInfo


class Cause(NamedTuple):
    """One reason of a refusal: ``reason`` such as FieldValueRequired, ``field`` such as ``spec.selector``."""

    reason: str
    message: str
    field: str = ""


class StatusError(ApiError):
    """An error with all parts of its Status object."""

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
        """``retry_after`` is in seconds; zero omits the header."""
        super().__init__(code, reason, message)
        self.metadata = dict(metadata or {})
        self.details, self.retry_after = dict(details or {}), retry_after
        if retry_after:
            self.details["retryAfterSeconds"] = retry_after

    def status(self) -> Object:
        """Return the Status object."""
        head = {"kind": "Status", "apiVersion": "v1", "metadata": self.metadata, "status": "Failure"}
        texts = {"message": self.message, "reason": self.reason, "details": self.details}
        return {**head, **_without_empty(texts), "code": self.code}


def _without_empty(fields: Object) -> Object:
    return {key: value for key, value in fields.items() if value}


def _details(info: ResourceInfo, name: str, causes: Sequence[Cause] = ()) -> Object:
    shown = [_without_empty(cause._asdict()) for cause in causes]
    return _without_empty({"name": name, "group": info.group, "kind": info.plural, "causes": shown})


def success(info: ResourceInfo, name: str, uid: str) -> Object:
    """Return the Status object of a finished deletion."""
    head: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {**head, "details": {**_details(info, name), "uid": uid}}


def no_such_path() -> StatusError:
    """404 for a path or resource that is not served."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def not_found(info: ResourceInfo, name: str) -> StatusError:
    """404 for an object."""
    return StatusError(404, "NotFound", f'{info.qualified_name} "{name}" not found', details=_details(info, name))


def already_exists(info: ResourceInfo, name: str) -> StatusError:
    """409 for a create."""
    message = f'{info.qualified_name} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=_details(info, name))


def conflict(info: ResourceInfo, name: str, why: str = "") -> StatusError:
    """409 for an update of an outdated version, or for another failed precondition."""
    text = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {info.qualified_name} "{name}": {text}'
    return StatusError(409, "Conflict", message, details=_details(info, name))


def invalid(info: ResourceInfo, name: str, causes: Sequence[Cause]) -> StatusError:
    """422 with one cause per invalid field."""
    texts = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    kind = f"{info.kind}.{info.group}" if info.group else info.kind
    details = {**_details(info, name, causes), "kind": info.kind}
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)


def refuse_options(text: str, kind: str = "Options") -> NoReturn:
    """Refuse parameters of a request, such as ``DeleteOptions``, with 422."""
    raise StatusError(422, "Invalid", f'{kind}.meta.k8s.io "" is invalid: {text}')


def forbidden(info: ResourceInfo, name: str, why: str, *, causes: Sequence[Cause] = ()) -> StatusError:
    """403 by admission."""
    subject = f'{info.qualified_name} "{name}"' if name else info.qualified_name
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {why}", details=_details(info, name, causes))


def refuse(message: str) -> NoReturn:
    """Refuse a request with 400."""
    raise StatusError(400, "BadRequest", message)


def method_not_allowed(message: str = "the server does not allow this method on the requested resource") -> StatusError:
    """405."""
    return StatusError(405, "MethodNotAllowed", message)


def unsupported_media_type(given: str, accepted: Sequence[str]) -> StatusError:
    """415 for a patch or body type."""
    text = "the body of the request was in an unknown format - accepted media types include: "
    return StatusError(415, "UnsupportedMediaType", f"{text}{', '.join(accepted)} (got {given or 'none'})")


def too_many_requests(message: str, *, retry_after: int = 1, causes: Sequence[Cause] = ()) -> StatusError:
    """429, with the seconds to wait."""
    details = _without_empty({"causes": [_without_empty(cause._asdict()) for cause in causes]})
    return StatusError(429, "TooManyRequests", message, details=details, retry_after=retry_after)


def required(field: str, message: str = "Required value") -> Cause:
    """Cause: a required field is missing."""
    return Cause("FieldValueRequired", message, field)


def invalid_value(field: str, value: str, why: str) -> Cause:
    """Cause: a field's value is invalid; ``value`` is JSON."""
    return Cause("FieldValueInvalid", f"Invalid value: {value}: {why}", field)


def unsupported_value(field: str, value: str, supported: Sequence[str]) -> Cause:
    """Cause: a field's value is not supported."""
    names = ", ".join(f'"{name}"' for name in supported)
    message = f'Unsupported value: "{value}": supported values: {names}'
    return Cause("FieldValueNotSupported", message, field)
