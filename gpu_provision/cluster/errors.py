"""What an API server's answers, and its silence, mean to a reader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpu_provision.model.findings import Finding, ProvisionError, Refused, Rejected, Unreachable, UsageError


class NotFound(Rejected):
    """The object, or its namespace, does not exist."""


class AlreadyExists(Rejected):
    """An object of this name exists."""


class Outdated(Rejected):
    """Somebody changed or replaced the object in between."""


class Gone(Rejected):
    """The resourceVersion to watch from is too old: list again."""


class Protected(Rejected):
    """A PodDisruptionBudget forbids to evict a pod now; the evidence names it."""


class FieldConflict(Rejected):
    """Other field managers own fields that we want to set; ``managers`` holds their names."""

    managers: frozenset[str] = frozenset()


class Overloaded(Unreachable):
    """The server asks to come back later (429, 503); ``retry_after`` is in seconds."""

    retry_after: float = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """What a request was about, for the reader: server, verb and object."""

    server: str
    verb: str
    subject: str
    advice: str = ""

    def __str__(self) -> str:
        """Return ``<server>: <verb> <subject>``."""
        return f"{self.server}: {self.verb} {self.subject}"


@contextmanager
def translated(place: Place) -> Iterator[None]:
    """Turn what the client library raises into this project's errors."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        # Status 0 is what the client library makes of any failure of TLS, also of a server that is going down.
        raise (_answered(error, place) if error.status else _silent(error, place)) from error
    except (HTTPError, OSError) as error:
        raise _silent(error, place) from error


def _silent(error: Exception, place: Place) -> ProvisionError:
    reason = getattr(error, "reason", None) or error
    if "CERTIFICATE_VERIFY_FAILED" in str(reason):
        return Unreachable(_finding("GP301", "the API server's certificate is not trusted", place, _short(reason), _CA))
    return Unreachable(
        Finding(
            code="GP301",
            what=f"the API server does not answer ({_short(reason)})",
            where=str(place),
            fix=place.advice,
        )
    )


def _short(reason: object) -> str:
    """Drop the library's own object names: ``HTTPSConnection(...): Failed to ...: [Errno 111] Connection refused``."""
    text = re.sub(r"^(<[^>]*>|\w+\([^)]*\)): |^SSLError\s+", "", str(reason))
    return text[text.index("[Errno") :] if "[Errno" in text else text


def _answered(error: Any, place: Place) -> ProvisionError:  # noqa: PLR0911 (a table of status codes)
    status = _status(error.body)
    message = status.get("message") or error.reason or ""
    match error.status:
        case 401:
            return Refused(
                _finding("GP302", "the API server does not accept these credentials", place, message, _LOGIN)
            )
        case 403 if message and not _is_about_the_user(status):
            return Rejected(_finding("GP305", "the API server does not admit it (403)", place, message))
        case 403:
            return Refused(_finding("GP303", "a permission is missing", place, message, _RIGHTS))
        case 404:
            return NotFound(_finding("GP305", "not found", place, message))
        case 409 if status.get("reason") == "AlreadyExists":
            return AlreadyExists(_finding("GP305", "exists already", place, message))
        case 409 if _conflicting_fields(status):
            return _field_conflict(status, place, message)
        case 409:
            return Outdated(_finding("GP305", "the object was changed in between", place, message, "run again"))
        case 410:
            return Gone(_finding("GP305", "the resource version is too old", place, message))
        case 429 | 500 | 502 | 503 | 504:
            return _not_now(error, place, status)
        case code:
            return Rejected(_finding("GP305", f"the API server rejects it ({code})", place, message))


def _not_now(error: Any, place: Place, status: dict[str, Any]) -> ProvisionError:
    message = status.get("message") or error.reason or ""
    if budget := _budget(status):
        return Protected(_finding("GP305", "a disruption budget forbids it for now", place, budget))
    if _NOT_OF_THE_SCHEMA in message:
        return Rejected(_finding("GP305", "the API server does not know all that is to be applied", place, message))
    return _without_logs(place, message) if _KUBELET_LOGS in message else _overloaded(error, place, message)


def no_api_server(place: Place) -> Unreachable:
    """Return the error for an answer that no API server gives: something else listens there."""
    return Unreachable(
        _finding(
            "GP301",
            "what answers there is no Kubernetes API server",
            place,
            "",
            "check the server's URL in the kubeconfig, and proxies on the way (HTTPS_PROXY, NO_PROXY)",
        )
    )


_NOT_OF_THE_SCHEMA = "failed to create typed patch object"  # an apply of a field that there is not; no use to wait
_KUBELET_LOGS = "/containerLogs/"  # in the kubelet's URL, which the API server names when it gets no answer there
_KUBELET = "see that the API server reaches port 10250 of the node, and trusts the certificate of its kubelet"
_CA = "compare certificate-authority-data of the kubeconfig with the cluster's, or fetch the kubeconfig anew"
_LOGIN = "log in again, or name another context in cluster.context (kubectl config get-contexts)"
_RIGHTS = "give the user of this kubeconfig the right, or use an administrator's (kubectl auth can-i --list)"


def _finding(code: str, what: str, place: Place, message: str, fix: str = "") -> Finding:
    return Finding(code=code, what=what, where=str(place), evidence=message, fix=fix)


def _status(body: Any) -> dict[str, Any]:
    try:
        parsed = json.loads(body or "{}")
    except (ValueError, TypeError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _is_about_the_user(status: dict[str, Any]) -> bool:
    """Whether a 403 is about rights, not about admission: quota, PodSecurity, a webhook, a namespace that ends."""
    message = str(status.get("message", ""))
    return not message or bool(re.search(_ABOUT_THE_USER, message))


# The last is 1.20's whole message about an apply that may not create.
_ABOUT_THE_USER = r'User "[^"]*" cannot |is attempting to grant RBAC permissions|is forbidden: *$'


def _budget(status: dict[str, Any]) -> str:
    """Return what a budget says against an eviction; empty for an answer that is not about one."""
    causes = (status.get("details") or {}).get("causes") or []
    return next((cause.get("message", "") for cause in causes if cause.get("reason") == "DisruptionBudget"), "")


def _conflicting_fields(status: dict[str, Any]) -> list[str]:
    causes = (status.get("details") or {}).get("causes") or []
    return [cause.get("field", "") for cause in causes if cause.get("reason") == "FieldManagerConflict"]


def _field_conflict(status: dict[str, Any], place: Place, message: str) -> FieldConflict:
    causes = (status.get("details") or {}).get("causes") or []
    owned = "; ".join(f"{cause.get('field', '?')} ({cause.get('message', '')})" for cause in causes)
    conflict = FieldConflict(
        Finding(
            code="GP304",
            what=f"another field manager owns what the inventory wants to set: {owned}",
            where=place.subject,
            evidence=message.splitlines()[0] if message else "",
            fix="let its owner release the field (kubectl apply --server-side --force-conflicts is the owner's tool, "
            "kubectl get -o yaml --show-managed-fields shows all), or delete the object, then run again",
        )
    )
    named = (re.search(r'"([^"]+)"', cause.get("message", "")) for cause in causes)
    conflict.managers = frozenset(match.group(1) for match in named if match)
    return conflict


def _without_logs(place: Place, message: str) -> Rejected:
    return Rejected(_finding("GP305", "the node does not hand out its logs", place, message, _KUBELET))


def _overloaded(error: Any, place: Place, message: str) -> Overloaded:
    overloaded = Overloaded(
        _finding(
            "GP301",
            f"the API server is overloaded or starting ({error.status})",
            place,
            message,
            "run again later",
        )
    )
    seconds = (error.headers or {}).get("Retry-After", "1")
    overloaded.retry_after = max(float(seconds), _SHORTEST_PAUSE) if str(seconds).isdigit() else 1.0
    return overloaded


_SHORTEST_PAUSE = 0.2  # some servers say Retry-After: 0, and mean "soon"


def bad_kubeconfig(path: str, context: str, reason: object) -> UsageError:
    """Return the error for a kubeconfig that cannot be used."""
    named = f"context {context!r} of {path}" if context else path
    return UsageError(
        Finding(
            code="GP300",
            what=f"the kubeconfig cannot be used: {reason}",
            where=named,
            fix="name another one with --kubeconfig and --context, or in the inventory with cluster.kubeconfig and "
            "cluster.context; kubectl config get-contexts lists them",
        )
    )
