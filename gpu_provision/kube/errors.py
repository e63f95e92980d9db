"""Map an API server's answers, and its silence, to errors with findings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """The API server answered 429, 500, 502, 503 or 504: the same request may succeed later."""

    status: int = 503  # the HTTP status
    retry_after: float = 0.0  # seconds that the server asks to wait; 0 if it does not say


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

    def finding(self, code: str, what: str, evidence: str = "", fix: str = "") -> Finding:
        """Return a finding about the request."""
        return Finding(code=code, what=what, where=str(self), evidence=evidence, fix=fix)


@contextmanager
def map_api_errors(place: RequestContext) -> Iterator[None]:
    """Turn what the client library raises into this project's errors."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        # Status 0 is what the client library makes of any failure of TLS, also of a server that is going down.
        raise (_status_error(error, place) if error.status else _unreachable_error(error, place)) from error
    except (HTTPError, OSError) as error:
        raise _unreachable_error(error, place) from error


def _unreachable_error(error: Exception, place: RequestContext) -> ProvisionError:
    # The library's own object names go: HTTPSConnection(...): Failed to ...: [Errno 111] Connection refused.
    reason = re.sub(r"^(<[^>]*>|\w+\([^)]*\)): |^SSLError\s+", "", str(getattr(error, "reason", None) or error))
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        what = "the API server's certificate is not trusted"
        return UntrustedCertificateError(place.finding("GP301", what, reason, _CA))
    short = reason[reason.index("[Errno") :] if "[Errno" in reason else reason
    return UnreachableError(place.finding("GP301", f"the API server does not answer ({short})", fix=place.advice))


def _status_error(error: Any, place: RequestContext) -> ProvisionError:  # noqa: PLR0911 (a table of status codes)
    status = _status(error.body)
    message = status.get("message") or error.reason or ""
    match error.status:
        case 401:
            what = "the API server does not accept these credentials"
            return ForbiddenError(place.finding("GP302", what, message, _LOGIN))
        case 403 if (said := status.get("message")) and not re.search(_ABOUT_THE_USER, said):
            return InvalidError(place.finding("GP305", "the API server does not admit it (403)", message))
        case 403:
            return ForbiddenError(place.finding("GP303", "a permission is missing", message, _RIGHTS))
        case 404:
            return NotFoundError(place.finding("GP305", "not found", message))
        case 409 if status.get("reason") == "AlreadyExists":
            return AlreadyExistsError(place.finding("GP305", "exists already", message))
        case 409 if causes := _causes(status, "FieldManagerConflict"):
            return _field_conflict(causes, place, message)
        case 409:
            return ConflictError(place.finding("GP305", "the object was changed in between", message, "run again"))
        case 410:
            return ExpiredError(place.finding("GP305", "the resource version is too old", message))
        case 429 | 500 | 502 | 503 | 504:
            return _temporary_error(error, place, status, message)
        case code:
            return InvalidError(place.finding("GP305", f"the API server rejects it ({code})", message))


def _temporary_error(  # noqa: PLR0911 (a table)
    error: Any, place: RequestContext, status: dict[str, Any], message: str
) -> ProvisionError:
    if budgets := _causes(status, "DisruptionBudget"):
        what = "a PodDisruptionBudget forbids it for now"
        return EvictionBlockedError(place.finding("GP305", what, budgets[0].get("message", "")))
    if _SEVERAL_BUDGETS in message:
        fix = "delete all but one of the PodDisruptionBudgets that select the pod"
        return EvictionBlockedError(place.finding("GP305", "several PodDisruptionBudgets forbid it", message, fix))
    if _NOT_OF_THE_SCHEMA in message:
        return InvalidError(place.finding("GP305", "the API server does not know all fields of the object", message))
    if _TOO_LARGE_VERSION in message:
        return ExpiredError(place.finding("GP305", "the API server has no such resource version", message))
    # Programs that the API server has called in vain.
    if place.subject.startswith(LOG) and _KUBELET_PORT.search(message):
        return LogUnavailableError(place.finding("GP305", "the node does not hand out its logs", message, _KUBELET))
    if webhook := _WEBHOOK.search(message):
        what = f"the admission webhook {webhook[1] or webhook[2]} fails"
        return WebhookError(place.finding("GP305", what, message, _WEBHOOKS))
    what = f"{_UNAVAILABLE.get(error.status, 'the API server fails')} ({error.status})"
    unavailable = UnavailableError(place.finding("GP301", what, message, "run again later"))
    unavailable.status, unavailable.retry_after = error.status, _retry_after(error.headers or {})
    return unavailable


def _retry_after(headers: Any) -> float:
    """Return the seconds that a server asks to wait, which it says as a number or as a date (RFC 9110, 10.2.3)."""
    text = str(headers.get("Retry-After", "")).strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        then = parsedate_to_datetime(text)
        now = parsedate_to_datetime(headers["Date"]) if "Date" in headers else datetime.now(UTC)
        return max(0.0, (then - now).total_seconds())
    except (TypeError, ValueError):  # the first also of a date without a time zone, next to one that has one
        return 0.0


def no_api_server(place: RequestContext) -> UnreachableError:
    """Return the error for an answer that no API server gives: something else listens there."""
    fix = "check the server's URL in the kubeconfig, and proxies on the way (HTTPS_PROXY, NO_PROXY)"
    return UnreachableError(place.finding("GP301", "what answers there is no Kubernetes API server", fix=fix))


_UNAVAILABLE = {
    429: "the API server is overloaded",
    502: "a proxy does not reach the API server",
    503: "the API server is starting, ending or overloaded",
    504: "the API server, or a proxy before it, ran out of time",
}
LOG = "log of "  # how the subject of a request for a container's log begins
# What kube-apiserver 1.20 to 1.36 says when it does not reach a kubelet: its URL, its address, or konnectivity's words.
_KUBELET_PORT = re.compile(r"/containerLogs/|no preferred addresses found|:10250|dial(ing)? |No agent available|x509:")
_WEBHOOK = re.compile(r'failed calling (?:admission )?webhook "([^"]*)"|admission webhook "([^"]*)".*internal error')
_WEBHOOKS = (
    "see that its Service has ready endpoints (kubectl get validatingwebhookconfigurations,"
    "mutatingwebhookconfigurations shows which), or remove the webhook"
)
_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"  # 500 by the eviction subresource, however often it is asked
_TOO_LARGE_VERSION = "Too large resource version"  # 504 of a server that was restored from a backup
_NOT_OF_THE_SCHEMA = "failed to create typed patch object"  # an apply of a field that there is not; no use to wait
_KUBELET = "see that the API server reaches port 10250 of the node, and trusts the certificate of its kubelet"
_CA = "compare certificate-authority-data of the kubeconfig with the cluster's, or fetch the kubeconfig again"
_LOGIN = "log in again, or name another context in cluster.context (kubectl config get-contexts)"
_RIGHTS = "grant the permission to the user of this kubeconfig, or use an administrator's (kubectl auth can-i --list)"


def _status(body: Any) -> dict[str, Any]:
    with suppress(ValueError, TypeError):
        if isinstance(parsed := json.loads(body or "{}"), dict):
            return parsed
    return {}


# What a 403 says about rights, not about admission: quota, PodSecurity, a webhook, a namespace that ends. The last is
# 1.20's whole message about an apply that may not create.
_ABOUT_THE_USER = r'User "[^"]*" cannot |is attempting to grant RBAC permissions|is forbidden: *$'


def _causes(status: dict[str, Any], reason: str) -> list[dict[str, str]]:
    causes = (status.get("details") or {}).get("causes") or []
    return [cause for cause in causes if cause.get("reason") == reason]


def _field_conflict(causes: list[dict[str, str]], place: RequestContext, message: str) -> FieldConflictError:
    owned = "; ".join(f"{cause.get('field', '?')} ({cause.get('message', '')})" for cause in causes)
    fix = (
        "let its owner release the field (kubectl apply --server-side --force-conflicts is the owner's tool, "
        "kubectl get -o yaml --show-managed-fields shows all), or delete the object, then run again"
    )
    what, first = f"another field manager owns what the inventory wants to set: {owned}", message.partition("\n")[0]
    conflict = FieldConflictError(Finding(code="GP304", what=what, where=place.subject, evidence=first, fix=fix))
    named = (re.search(r'"([^"]+)"', cause.get("message", "")) for cause in causes)
    conflict.managers = frozenset(match.group(1) for match in named if match)
    return conflict


def kubeconfig_error(where: str, reason: object) -> UsageError:
    """Return the error for a kubeconfig that cannot be used."""
    fix = (
        "name another one with --kubeconfig and --context, or in the inventory with cluster.kubeconfig and "
        "cluster.context; kubectl config get-contexts lists them"
    )
    return UsageError(Finding(code="GP300", what=f"the kubeconfig cannot be used: {reason}", where=where, fix=fix))
