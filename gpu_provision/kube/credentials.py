"""Credentials of one client, and the credential plugins that a kubeconfig names for them under ``exec``."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_provision.model.codes import PLUGIN_FAILED
from gpu_provision.model.findings import Finding, ProvisionError

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
    """The credential of one client at any time, from any thread."""

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


VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
_SECONDS, _INTERACTIVE_SECONDS = 60, 300  # for a plugin by itself, and for one that waits for a person
_PATIENCE_SECONDS = 1  # after which stderr says what the command waits for
_MOST_BYTES = 65536  # of its stderr at a time
_LINES, _COLUMNS = 5, 300  # of its stderr, as evidence
_SHORT = 6  # values below are names and switches, which hide nothing and stand in many words


class CredentialPluginError(ProvisionError):
    """A credential plugin gives no credential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A command that prints a credential.

    Attributes:
        where: The kubeconfig's entry that names it.
        command: Program, with a folder or to be found on PATH.
        api_version: What it is asked in, and answers in; one of VERSIONS.
        env: Variables besides those of this process; may be secret, as may be the arguments.
        cluster: What it learns of the cluster; None for nothing.
        mode: ``Never``, ``IfAvailable`` or ``Always``: whether it gets the terminal.
        hint: How to install it.
    """

    where: str
    command: str
    api_version: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster: Mapping[str, Any] | None = None
    mode: str = "IfAvailable"
    hint: str = ""

    @property
    def name(self) -> str:
        """The program's name without its folder."""
        return Path(self.command).name


def credential_of(plugin: Plugin) -> Credential:
    """Run a plugin and return the credential that it prints. Raises CredentialPluginError."""
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.mode == "Always" and not has_terminal:
        what = "wants to ask a person, and there is no terminal"
        raise _failed(plugin, what, fix="run the command in a terminal, or name a user whose plugin asks nothing")
    code, said, complaint = _run(plugin, interactive=has_terminal and plugin.mode != "Never")
    if code:
        raise _failed(plugin, f"failed with exit code {code}", complaint)
    return _read(plugin, said, complaint)


def _run(plugin: Plugin, *, interactive: bool) -> tuple[int, bytes, bytes]:
    """Return a plugin's exit code, and what it wrote to stdout and stderr."""
    asked: dict[str, Any] = {"interactive": interactive}
    asked |= {"cluster": plugin.cluster} if plugin.cluster is not None else {}
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": asked}
    with tempfile.TemporaryFile() as complaint:  # which can be read while the plugin runs, also under gevent
        try:
            process = subprocess.Popen(  # noqa: S603 - the kubeconfig is the user's own
                [plugin.command, *plugin.args],
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaint,
                env={**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": json.dumps(request)},
                start_new_session=not interactive,  # what it has started ends with it; a terminal serves one session
            )
        except OSError as error:
            raise _failed(plugin, f"cannot be started: {error.strerror}", fix=plugin.hint or _INSTALL) from error
        except ValueError:  # whose text may hold the environment
            what = "cannot be started: its arguments or variables hold a character that none may"
            raise _failed(plugin, what) from None
        with process, _ended(process, group=not interactive):
            said = _followed(process, plugin, complaint.fileno(), interactive=interactive)
        return process.returncode, said, _written(complaint.fileno())


@contextmanager
def _ended(process: subprocess.Popen[bytes], *, group: bool) -> Iterator[None]:
    """End a process that is left before its end, also by Ctrl-C."""
    try:
        yield
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if group else process.kill()
        raise


def _followed(process: subprocess.Popen[bytes], plugin: Plugin, complaint: int, *, interactive: bool) -> bytes:
    """Return what a process wrote to stdout; say what it waits for if it takes long."""
    limit = _INTERACTIVE_SECONDS if interactive else _SECONDS
    end = time.monotonic() + limit
    shown: int | None = None
    while True:
        left = end - time.monotonic()
        try:
            return process.communicate(timeout=max(0, min(_PATIENCE_SECONDS, left)))[0]
        except subprocess.TimeoutExpired as late:
            if left <= _PATIENCE_SECONDS:
                raise _failed(plugin, f"has not ended after {limit} s", _written(complaint)) from late
        if shown is None:
            _tell(f"Waiting for the credential plugin {plugin.name}, at most {limit} s.\n")
            shown = 0
        if interactive:  # such as where to log in, and with which code
            said = _written(complaint, shown)
            shown += len(said)
            _tell(said.decode(errors="replace"))


def _written(file: int, start: int = 0) -> bytes:
    """Return what is in a file without moving the place where a plugin writes."""
    return os.pread(file, _MOST_BYTES, max(start, os.fstat(file).st_size - _MOST_BYTES))


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _read(plugin: Plugin, said: bytes, complaint: bytes) -> Credential:
    """Return the credential of an ExecCredential. No message quotes it: it holds secrets."""
    try:
        answer = json.loads(said)
    except (ValueError, RecursionError):
        raise _failed(plugin, "did not print JSON", complaint) from None
    status = answer.get("status") if isinstance(answer, dict) else None
    if not isinstance(status, dict) or answer.get("kind") != "ExecCredential":
        raise _failed(plugin, "did not print an ExecCredential with a status", complaint)
    if answer.get("apiVersion") != plugin.api_version:
        raise _failed(plugin, f"did not answer in {plugin.api_version}, as the kubeconfig asks for", complaint)
    token, certificate, key = (_text(status, name) for name in ("token", "clientCertificateData", "clientKeyData"))
    if not token and not (certificate and key):
        raise _failed(plugin, "printed neither a token nor a client certificate with its key", complaint)
    if token and not is_sendable(token):
        raise _failed(plugin, "printed a token with characters that no request may hold", complaint)
    if certificate and key and (problem := problem_of_pair(certificate.encode(), key.encode())):
        raise _failed(plugin, f"printed a client certificate that cannot be used: {problem}", complaint)
    expires = _expiry(plugin, status)
    return Credential(
        authorization=f"Bearer {token}" if token else "",
        certificate=certificate if key else "",
        key=key if certificate else "",
        **({"expires": expires, "renewal": renewal_of(expires)} if expires else {}),
    )


def _text(status: Mapping[str, Any], name: str) -> str:
    value = status.get(name)
    return value if isinstance(value, str) else ""


def _expiry(plugin: Plugin, status: Mapping[str, Any]) -> float:
    """Return when a credential ends, in seconds since 1970; 0 if it does not say."""
    if not (text := status.get("expirationTimestamp")):
        return 0
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise _failed(plugin, "printed an expirationTimestamp that is no time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_INSTALL = "install it, or correct the command in the kubeconfig"


def _failed(plugin: Plugin, what: str, complaint: bytes = b"", *, fix: str = "") -> CredentialPluginError:
    """Return the error of a plugin, with the end of its stderr. The arguments are not told: they may be secret."""
    return CredentialPluginError(
        Finding(
            code=PLUGIN_FAILED,
            what=f"the credential plugin {plugin.name} {what}",
            where=plugin.where,
            evidence=_tail(plugin, complaint),
            fix=fix or "log in again with the tool that the plugin belongs to; kubectl version runs the same plugin",
        )
    )


def _tail(plugin: Plugin, complaint: bytes) -> str:
    text = complaint.decode(errors="replace")
    for value in sorted(plugin.env.values(), key=len, reverse=True):
        text = text.replace(value, "***") if len(value) >= _SHORT else text
    lines = [line.strip()[:_COLUMNS] for line in text.splitlines() if line.strip()]
    return re.sub(r"[^\n -~\u00a0-\U0010ffff]", lambda found: f"\\x{ord(found[0]):02x}", "\n".join(lines[-_LINES:]))
