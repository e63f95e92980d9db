"""Map an API server's answers, and its silence, to errors with findings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from gpu_provision.model.findings import (
    Finding,
    ForbiddenError,
    InvalidError,
    ProvisionError,
    UnreachableError,
    UsageError,
)


class NotFoundError(InvalidError):
    """The object, or its namespace, does not exist."""


class AlreadyExistsError(InvalidError):
    """An object of this name exists."""


class ConflictError(InvalidError):
    """The object was changed or replaced in between."""


class ExpiredError(InvalidError):
    """The resourceVersion to watch from is too old: list again."""


class EvictionBlockedError(InvalidError):
    """A PodDisruptionBudget forbids to evict a pod now; the evidence names it."""


class FieldConflictError(InvalidError):
    """Other field managers own fields that we want to set; ``managers`` holds their names."""

    managers: frozenset[str] = frozenset()


class UnavailableError(UnreachableError):
    """The API server answered 429, 500, 502, 503 or 504: the same request may succeed later.

    Attributes:
        status: The HTTP status.
        retry_after: Seconds that the server asks to wait; 0 if it does not say.
    """

    status: int = 503
    retry_after: float = 0.0


class WebhookError(InvalidError):
    """An admission webhook that the API server calls does not answer, or fails; it may be starting."""


class UntrustedCertificateError(UnreachableError):
    """The server's certificate is not signed by the kubeconfig's authority: asking again does not help."""


class LogUnavailableError(InvalidError):
    """The API server could not get a container's log from the node's kubelet."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a request was about, for the reader: server, verb and object."""

    server: str
    verb: str
    subject: str
    advice: str = ""

    def __str__(self) -> str:
        """Return ``<server>: <verb> <subject>``."""
        return f"{self.server}: {self.verb} {self.subject}"


@contextmanager
def map_api_errors(place: RequestContext) -> Iterator[None]:
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


def _silent(error: Exception, place: RequestContext) -> ProvisionError:
    reason = getattr(error, "reason", None) or error
    if "CERTIFICATE_VERIFY_FAILED" in str(reason):
        untrusted = "the API server's certificate is not trusted"
        return UntrustedCertificateError(_finding("GP301", untrusted, place, _short(reason), _CA))
    return UnreachableError(
        Finding(
            code="GP301", what=f"the API server does not answer ({_short(reason)})", where=str(place), fix=place.advice
        )
    )


def _short(reason: object) -> str:
    """Drop the library's own object names: ``HTTPSConnection(...): Failed to ...: [Errno 111] Connection refused``."""
    text = re.sub(r"^(<[^>]*>|\w+\([^)]*\)): |^SSLError\s+", "", str(reason))
    return text[text.index("[Errno") :] if "[Errno" in text else text


def _answered(error: Any, place: RequestContext) -> ProvisionError:  # noqa: PLR0911 (a table of status codes)
    status = _status(error.body)
    message = status.get("message") or error.reason or ""
    match error.status:
        case 401:
            return ForbiddenError(
                _finding("GP302", "the API server does not accept these credentials", place, message, _LOGIN)
            )
        case 403 if (said := status.get("message")) and not re.search(_ABOUT_THE_USER, said):
            return InvalidError(_finding("GP305", "the API server does not admit it (403)", place, message))
        case 403:
            return ForbiddenError(_finding("GP303", "a permission is missing", place, message, _RIGHTS))
        case 404:
            return NotFoundError(_finding("GP305", "not found", place, message))
        case 409 if status.get("reason") == "AlreadyExists":
            return AlreadyExistsError(_finding("GP305", "exists already", place, message))
        case 409 if causes := _causes(status, "FieldManagerConflict"):
            return _field_conflict(causes, place, message)
        case 409:
            return ConflictError(_finding("GP305", "the object was changed in between", place, message, "run again"))
        case 410:
            return ExpiredError(_finding("GP305", "the resource version is too old", place, message))
        case 429 | 500 | 502 | 503 | 504:
            return _not_now(error, place, status)
        case code:
            return InvalidError(_finding("GP305", f"the API server rejects it ({code})", place, message))


def _not_now(error: Any, place: RequestContext, status: dict[str, Any]) -> ProvisionError:  # noqa: PLR0911 (a table)
    message = status.get("message") or error.reason or ""
    if budgets := _causes(status, "DisruptionBudget"):
        budget = budgets[0].get("message", "")
        return EvictionBlockedError(_finding("GP305", "a disruption budget forbids it for now", place, budget))
    if _SEVERAL_BUDGETS in message:
        return EvictionBlockedError(
            _finding("GP305", "several disruption budgets forbid it", place, message, _ONE_BUDGET)
        )
    if _NOT_OF_THE_SCHEMA in message:
        return InvalidError(_finding("GP305", "the API server does not know all fields of the object", place, message))
    if _TOO_LARGE_VERSION in message:
        return ExpiredError(_finding("GP305", "the API server has no such resource version", place, message))
    # Programs that the API server has called in vain.
    if place.subject.startswith(LOG) and _KUBELET_PORT.search(message):
        return LogUnavailableError(_finding("GP305", "the node does not hand out its logs", place, message, _KUBELET))
    if webhook := _WEBHOOK.search(message):
        what = f"the admission webhook {webhook[1] or webhook[2]} fails"
        return WebhookError(_finding("GP305", what, place, message, _WEBHOOKS))
    what = _UNAVAILABLE.get(error.status, "the API server fails")
    unavailable = UnavailableError(_finding("GP301", f"{what} ({error.status})", place, message, "run again later"))
    unavailable.status, unavailable.retry_after = error.status, _retry_after(error.headers or {})
    return unavailable


def _retry_after(headers: Any) -> float:
    """Return the seconds that a server asks to wait, which it says as a number or as a date (RFC 9110, 10.2.3)."""
    text = str(headers.get("Retry-After", "")).strip()
    if text.isdecimal():
        return float(text[:_LONGEST_NUMBER])
    try:
        then = parsedate_to_datetime(text)
        now = parsedate_to_datetime(headers["Date"]) if "Date" in headers else datetime.now(UTC)
        return max(0.0, (then - now).total_seconds())
    except (TypeError, ValueError):  # the first also of a date without a time zone, next to one that has one
        return 0.0


def no_api_server(place: RequestContext) -> UnreachableError:
    """Return the error for an answer that no API server gives: something else listens there."""
    return UnreachableError(
        _finding(
            "GP301",
            "what answers there is no Kubernetes API server",
            place,
            "",
            "check the server's URL in the kubeconfig, and proxies on the way (HTTPS_PROXY, NO_PROXY)",
        )
    )


_UNAVAILABLE = {
    429: "the API server is overloaded",
    502: "a proxy does not reach the API server",
    503: "the API server is starting, ending or overloaded",
    504: "the API server, or a proxy before it, ran out of time",
}
LOG = "log of "
"""How the subject of a request for a container's log begins."""
_LONGEST_NUMBER = 9
# What kube-apiserver 1.20 to 1.36 says when it does not reach a kubelet: its URL, its address, or konnectivity's words.
_KUBELET_PORT = re.compile(r"/containerLogs/|no preferred addresses found|:10250|dial(ing)? |No agent available|x509:")
_WEBHOOK = re.compile(r'failed calling (?:admission )?webhook "([^"]*)"|admission webhook "([^"]*)".*internal error')
_WEBHOOKS = (
    "see that its Service has ready endpoints (kubectl get validatingwebhookconfigurations,"
    "mutatingwebhookconfigurations shows which), or remove the webhook"
)
_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"  # 500 by the eviction subresource, however often it is asked
_ONE_BUDGET = "delete all but one of the PodDisruptionBudgets that select the pod"
_TOO_LARGE_VERSION = "Too large resource version"  # 504 of a server that was restored from a backup
_NOT_OF_THE_SCHEMA = "failed to create typed patch object"  # an apply of a field that there is not; no use to wait
_KUBELET = "see that the API server reaches port 10250 of the node, and trusts the certificate of its kubelet"
_CA = "compare certificate-authority-data of the kubeconfig with the cluster's, or fetch the kubeconfig again"
_LOGIN = "log in again, or name another context in cluster.context (kubectl config get-contexts)"
_RIGHTS = "give the user of this kubeconfig the right, or use an administrator's (kubectl auth can-i --list)"


def _finding(code: str, what: str, place: RequestContext, message: str, fix: str = "") -> Finding:
    return Finding(code=code, what=what, where=str(place), evidence=message, fix=fix)


def _status(body: Any) -> dict[str, Any]:
    try:
        parsed = json.loads(body or "{}")
    except (ValueError, TypeError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


# What a 403 says about rights, not about admission: quota, PodSecurity, a webhook, a namespace that ends. The last is
# 1.20's whole message about an apply that may not create.
_ABOUT_THE_USER = r'User "[^"]*" cannot |is attempting to grant RBAC permissions|is forbidden: *$'


def _causes(status: dict[str, Any], reason: str) -> list[dict[str, str]]:
    causes = (status.get("details") or {}).get("causes") or []
    return [cause for cause in causes if cause.get("reason") == reason]


def _field_conflict(causes: list[dict[str, str]], place: RequestContext, message: str) -> FieldConflictError:
    owned = "; ".join(f"{cause.get('field', '?')} ({cause.get('message', '')})" for cause in causes)
    conflict = FieldConflictError(
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
