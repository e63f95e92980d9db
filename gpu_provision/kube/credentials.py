"""Credentials of one client, and the plugins that a kubeconfig names for them under ``exec``.

Credentials are renewed before they end, and when the API server no longer accepts them.
"""

from __future__ import annotations

import math
import os
import re
import ssl
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.model.findings import ProvisionError

_UNAUTHORIZED = 401
_PAUSE_SECONDS = 10.0  # between two runs of a plugin, however short its tokens live
_LEAD_SECONDS = 300.0  # at most, before the end of a token, for several tries to renew it


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a client shows to an API server.

    Attributes:
        authorization: Value of the header of this name; empty for none.
        certificate: PEM of a client certificate; empty for that of the kubeconfig, if it has one.
        key: PEM of its private key.
        expires: When it ends, in seconds since 1970.
        renewal: When to ask for the next one.
    """

    authorization: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    expires: float = field(default=math.inf, compare=False)
    renewal: float = field(default=math.inf, compare=False)


class MemoryFile:
    """A file of this process alone, for a library that takes paths: a private key reaches no disk.

    Attributes:
        path: Where this process opens it, as long as this object lives.
    """

    def __init__(self, content: bytes) -> None:
        """Write it. Where there are no files in memory, it is a temporary one, removed at the end."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("gpu-provision")
            self.path = f"/proc/self/fd/{descriptor}"
            weakref.finalize(self, os.close, descriptor)
        else:
            descriptor, self.path = tempfile.mkstemp()
            weakref.finalize(self, os.close, descriptor)
            weakref.finalize(self, os.unlink, self.path)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)


def is_sendable(token: str) -> bool:
    """Whether a request's header can hold a token; the HTTP library quotes it in an error otherwise."""
    return bool(re.fullmatch("[!-~]+", token))


def problem_of_pair(certificate: bytes, key: bytes) -> str:
    """Return why a client certificate and its private key, both PEM, cannot be used; empty if they can.

    Args:
        key: Empty if it follows the certificate.
    """
    file, key_file = MemoryFile(certificate), MemoryFile(key)
    try:
        # Without a password the SSL library would ask the terminal for that of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(file.path, key_file.path if key else None, password="")
    except ssl.SSLError as error:
        return f"no PEM certificate with its unencrypted private key ({error.reason or 'the key has a password'})"
    return ""


def renewal_of(expires: float) -> float:
    """Return when to renew what ends at a time, both in seconds since 1970."""
    left = expires - time.time()
    return expires - min(_LEAD_SECONDS, left / 5)


class Login:
    """The credential of one client at any time. From any thread."""

    def __init__(self, obtain: Callable[[], Credential]) -> None:
        """Obtain the first credential. Raises what ``obtain`` raises, such as a ProvisionError."""
        self._obtain, self._renewing = obtain, threading.Lock()
        self._last = obtain()
        self._obtained, self._renewal = time.time(), self._last.renewal

    def credential(self) -> Credential:
        """Return a credential that has not ended. Raises what ``obtain`` raises, but only if the last one has ended."""
        with self._renewing:
            if self._is_time(self._renewal):
                self._renew()
            return self._last

    def other_than(self, refused: Credential) -> Credential:
        """Return the credential to use instead of one that was refused; the same if there is no other."""
        with self._renewing:
            if self._last == refused and self._is_time(0):
                self._renew(refused=True)
            return self._last

    def _is_time(self, earliest: float) -> bool:
        return time.time() >= max(earliest, self._obtained + _PAUSE_SECONDS)

    def _renew(self, *, refused: bool = False) -> None:
        self._obtained = time.time()
        try:
            self._last = self._obtain()
        except ProvisionError:
            if refused or time.time() >= self._last.expires:
                raise
            return  # the last one still holds; the next request after a pause tries again
        self._renewal = self._last.renewal


class Transport:
    """Sends requests as the ``rest_client`` of an ApiClient does, with the credential of a `Login`."""

    def __init__(self, settings: Any, login: Login, files: list[MemoryFile]) -> None:
        """Keep a ``kubernetes.client.Configuration`` and the files that it names, and connect nowhere yet."""
        self._settings, self._login, self._kept = settings, login, files
        self._making = threading.Lock()
        self._certificate = ""
        self._files: list[MemoryFile] = []
        self._rest = self._made(login.credential())

    def request(self, method: str, url: str, headers: dict[str, str] | None = None, **options: Any) -> Any:
        """Send a request, and once more with another credential if the server refuses the first one.

        A refused request was not carried out, whatever it asks for.
        """
        used = self._login.credential()
        answer = self._send(used, method, url, headers, options)
        if answer.status != _UNAUTHORIZED:
            return answer
        other = self._login.other_than(used)
        if other == used:
            return answer
        answer.read()  # which gives its connection back
        return self._send(other, method, url, headers, options)

    def _send(
        self, credential: Credential, method: str, url: str, headers: dict[str, str] | None, options: dict[str, Any]
    ) -> Any:
        signed = {"authorization": credential.authorization} if credential.authorization else {}
        with self._making:
            if credential.certificate != self._certificate:
                self._rest = self._made(credential)
            rest = self._rest
        return rest.request(method, url, headers={**(headers or {}), **signed}, **options)

    def _made(self, credential: Credential) -> Any:
        from kubernetes.client.rest import RESTClientObject

        if credential.certificate:
            # Connections that are being made may still read the files of the certificate before.
            made = [MemoryFile(part.encode()) for part in (credential.certificate, credential.key)]
            self._files = [*self._files[-2:], *made]
            self._settings.cert_file, self._settings.key_file = (file.path for file in made)
        self._certificate = credential.certificate
        return RESTClientObject(self._settings)
