"""When a request to an API server is repeated, how long that may take, and what is said meanwhile.

client-go repeats what carries Retry-After ten times at most, and resets of GETs; a run of ten minutes on a fleet meets
more than that. Here the time is bounded, not the number of tries.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.kube.errors import (
    ExpiredError,
    LogUnavailableError,
    UnavailableError,
    UntrustedCertificateError,
    WebhookError,
)
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, ProvisionError, UnreachableError, UsageError

RETRIED = (UnreachableError, WebhookError, LogUnavailableError)
"""Errors after which the same request may succeed. All others are definite answers."""

FIRST_CONTACT_SECONDS = 5.0  # for how long a server that has never answered is asked: a wrong address fails fast
RETRY_SECONDS = 60.0  # for how long a server that has answered once is asked: about a restart of a control plane
VARIABLE = "GPU_PROVISION_API_TIMEOUT"
"""Environment variable: the seconds for which every request is repeated, the first one as well."""

QUIET_SECONDS = 4.0  # how long repeating takes before it is reported, and between two reports
_DIGITS = 9
_FIRST_DELAY, _MAX_DELAY = 0.25, 8.0
_WEBHOOK_SECONDS = 5.0  # one that starts is waited for; one that always fails is named soon
_LOG_TRIES = 2  # of a kubelet's port: certificates, firewalls and tunnels stay as they are


def retry_seconds_of(environ: Mapping[str, str]) -> float | None:
    """Return the seconds that `VARIABLE` names; None if it is not set. Raises UsageError."""
    text = environ.get(VARIABLE, "")
    if not text:
        return None
    if text.isdecimal() and text.isascii() and int(text[:_DIGITS]) > 0:
        return float(text[:_DIGITS])
    what = f"${VARIABLE} is not a number of seconds: {text[:40]!r}"
    raise UsageError(Finding(code=codes.NO_TIMEOUT, what=what, fix=f"set it to a whole number, as in {VARIABLE}=120"))


@dataclass(slots=True)
class Retries:
    """The failures of one request."""

    seconds: float = 0.0  # for how long after its first try the request is repeated
    tries: int = 0  # how many have failed
    _last: str = ""  # in words: the error itself would keep the frames of the request, and so its connection
    _began: float = field(default_factory=time.monotonic)
    _webhook_began: float = math.inf
    _next: float = 0.0

    def delay(self, error: ProvisionError, now: float) -> float | None:
        """Take a failure in, and return the seconds until the next try, the last at the end of the time, or None."""
        self.tries += 1
        self._last, end = "answered 500", self._began + self.seconds
        match error:
            case UntrustedCertificateError():
                end = now
            case UnavailableError():
                self._last = f"answered {error.status}"
            case UnreachableError():
                self._last = "does not answer"
            case ExpiredError():
                self._last = "answered 410"
            case LogUnavailableError() if self.tries >= _LOG_TRIES:
                end = now
            case WebhookError():
                self._webhook_began = min(self._webhook_began, now)
                end = min(self._webhook_began + _WEBHOOK_SECONDS, end)
        # Exponential with full jitter, so that many threads and controllers do not ask in step.
        pause = random.uniform(0.0, min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** min(self.tries, 10)))  # noqa: S311 - no secret
        asked = error.retry_after if isinstance(error, UnavailableError) else 0.0
        self._next = min(now + max(pause, asked), end)
        return self._next - now if self._next > now else None

    def seconds_left(self, now: float) -> float:
        """Return for how many more seconds the request is repeated."""
        return max(0.0, self._began + self.seconds - now)

    @property
    def should_report(self) -> bool:
        """Whether the request takes so long that a reader wants to know why."""
        return self._next - self._began > QUIET_SECONDS

    def __str__(self) -> str:
        """Return what happened last: ``the API server answered 503``."""
        return f"the API server {self._last}"
