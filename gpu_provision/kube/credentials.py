"""Credentials of one client, and the credential plugins that a kubeconfig names for them under ``exec``."""

from __future__ import annotations

import base64
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_provision.model.codes import PLUGIN_FAILED
from gpu_provision.model.findings import Finding, ProvisionError

if TYPE_CHECKING:
    from gpu_provision.kube.config import Entry

_PAUSE_SECONDS = 10.0  # between two runs of a plugin, however short its tokens live
_LEAD_SECONDS = 300.0  # at most, before the end of a token, for several tries to renew it


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a client shows to an API server."""

    authorization: str = field(default="", repr=False)  # value of the header of this name; empty for none
    # PEM of a client certificate; empty for that of the kubeconfig, if it has one
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)  # PEM of its private key
    expires: float = field(default=math.inf, compare=False)  # when it ends, in seconds since 1970
    renewal: float = field(default=math.inf, compare=False)  # when to ask for the next one


class MemoryFile:
    """A file of this process alone, at ``path`` as long as this object lives: a private key reaches no disk."""

    def __init__(self, content: bytes) -> None:
        """Write it. Where there are no files in memory, it is a temporary one, removed at the end."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("gpu-provision")
            self.path = f"/proc/self/fd/{descriptor}"
        else:
            descriptor, self.path = tempfile.mkstemp()
            weakref.finalize(self, os.unlink, self.path)
        weakref.finalize(self, os.close, descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)


def is_sendable(token: str) -> bool:
    """Whether a request's header can hold a token; the HTTP library quotes it in an error otherwise."""
    return bool(re.fullmatch("[!-~]+", token))


def problem_of_pair(certificate: bytes, key: bytes) -> str:
    """Return why a client certificate and its key, both PEM, cannot be used; an empty key follows the certificate."""
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

    def replace_refused(self, refused: Credential) -> Credential:
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
        self._rest = self._build_client(login.credential())

    def request(self, method: str, url: str, headers: dict[str, str] | None = None, **options: Any) -> Any:
        """Send a request, and once more with another credential if the first one is refused: it was not carried out."""

        def send(credential: Credential) -> Any:
            signed = {"authorization": credential.authorization} if credential.authorization else {}
            with self._making:
                if credential.certificate != self._certificate:
                    self._rest = self._build_client(credential)
                rest = self._rest
            return rest.request(method, url, headers={**(headers or {}), **signed}, **options)

        answer = send(used := self._login.credential())
        if answer.status != HTTPStatus.UNAUTHORIZED or (other := self._login.replace_refused(used)) == used:
            return answer
        answer.read()  # which gives its connection back
        return send(other)

    def _build_client(self, credential: Credential) -> Any:
        from kubernetes.client.rest import RESTClientObject

        if credential.certificate:
            # Connections that are being made may still read the files of the certificate before.
            made = [MemoryFile(part.encode()) for part in (credential.certificate, credential.key)]
            self._files = [*self._files[-2:], *made]
            self._settings.cert_file, self._settings.key_file = (file.path for file in made)
        self._certificate = credential.certificate
        return RESTClientObject(self._settings)


_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
_SECONDS, _INTERACTIVE_SECONDS = 60, 300  # for a plugin by itself, and for one that waits for a person
_HINT_DELAY_SECONDS = 1  # after which stderr says what the command waits for
_MAX_BYTES = 65536  # of its stderr at a time
_LINES, _COLUMNS = 5, 300  # of its stderr, as evidence
_SHORT = 6  # values below are names and switches, which hide nothing and stand in many words


class CredentialPluginError(ProvisionError):
    """A credential plugin gives no credential."""


class CredentialPlugin:
    """A command that prints a credential, as a kubeconfig names it under ``exec``. Its arguments may be secret."""

    def __init__(self, entry: Entry, cluster: Entry) -> None:
        """Read the entry. Raises UsageError."""
        command, self._version = entry.text("command"), entry.text("apiVersion")
        if not command:
            raise entry.value_error(key="command", reason="it is missing")
        if self._version not in _VERSIONS:
            raise entry.value_error(key="apiVersion", reason=f"it must be one of {', '.join(_VERSIONS)}")
        self._mode = entry.text("interactiveMode") or "IfAvailable"
        if self._mode not in {"Never", "IfAvailable", "Always"}:
            raise entry.value_error(key="interactiveMode", reason="it must be Never, IfAvailable or Always")
        args = entry.get_typed("args", list, "it must be a list")
        if not all(isinstance(each, str) for each in args):
            raise entry.value_error(key="args", reason="it must be a list of strings; put each in quotes")
        self._env: dict[str, str] = {}
        for variable in entry.parts("env"):
            if not variable.text("name"):
                raise variable.value_error(key="name", reason="it is missing")
            self._env[variable.text("name")] = variable.text("value")
        self._cluster = _information(cluster) if entry.flag("provideClusterInfo") else None
        self._where, self._hint, self._name = (
            f"{entry.file}: {entry.location}",
            entry.text("installHint"),
            Path(command).name,
        )
        self._command = [str(entry.file.parent / command) if os.sep in command else command, *args]

    def __call__(self) -> Credential:
        """Run it and return the credential that it prints. Raises CredentialPluginError."""
        has_terminal = sys.stdin is not None and sys.stdin.isatty()
        if self._mode == "Always" and not has_terminal:
            what = "wants to ask a person, and there is no terminal"
            raise self._plugin_error(
                None, what, "run the command in a terminal, or name a user whose plugin asks nothing"
            )
        code, said, complaint = self._run(interactive=has_terminal and self._mode != "Never")
        if code:
            raise self._plugin_error(complaint, f"failed with exit code {code}")
        return self._read(said, complaint)

    def _run(self, *, interactive: bool) -> tuple[int, bytes, bytes]:
        """Return the plugin's exit code, and what it wrote to stdout and stderr."""
        asked: dict[str, Any] = {"interactive": interactive}
        asked |= {"cluster": self._cluster} if self._cluster is not None else {}
        request = {"apiVersion": self._version, "kind": "ExecCredential", "spec": asked}
        with tempfile.TemporaryFile() as complaint:  # which can be read while the plugin runs, also under gevent
            try:
                process = subprocess.Popen(  # noqa: S603 - the kubeconfig is the user's own
                    self._command,
                    stdin=None if interactive else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=complaint,
                    env={**os.environ, **self._env, "KUBERNETES_EXEC_INFO": json.dumps(request)},
                    start_new_session=not interactive,  # what it started ends with it; a terminal serves one session
                )
            except OSError as error:
                fix = self._hint or "install it, or correct the command in the kubeconfig"
                raise self._plugin_error(None, f"cannot be started: {error.strerror}", fix) from error
            except ValueError:  # whose text may hold the environment
                what = "cannot be started: its arguments or variables hold a character that none may"
                raise self._plugin_error(None, what) from None
            with process:
                try:
                    said = self._follow(process, complaint.fileno(), interactive=interactive)
                except BaseException:  # also Ctrl-C
                    with suppress(ProcessLookupError):
                        process.kill() if interactive else os.killpg(process.pid, signal.SIGKILL)
                    raise
            return process.returncode, said, _read_tail(complaint.fileno())

    def _follow(self, process: subprocess.Popen[bytes], complaint: int, *, interactive: bool) -> bytes:
        """Return what a process wrote to stdout; say what it waits for if it takes long."""
        limit = _INTERACTIVE_SECONDS if interactive else _SECONDS
        end = time.monotonic() + limit
        shown: int | None = None
        while True:
            left = end - time.monotonic()
            try:
                return process.communicate(timeout=max(0, min(_HINT_DELAY_SECONDS, left)))[0]
            except subprocess.TimeoutExpired as late:
                if left <= _HINT_DELAY_SECONDS:
                    raise self._plugin_error(_read_tail(complaint), f"has not ended after {limit} s") from late
            if shown is None:
                _write_stderr(f"Waiting for the credential plugin {self._name}, at most {limit} s.\n")
                shown = 0
            if interactive:  # such as where to log in, and with which code
                said = _read_tail(complaint, shown)
                shown += len(said)
                _write_stderr(said.decode(errors="replace"))

    def _read(self, said: bytes, complaint: bytes) -> Credential:
        """Return the credential of an ExecCredential. No message quotes it: it holds secrets."""
        try:
            answer = json.loads(said)
        except (ValueError, RecursionError):
            raise self._plugin_error(complaint, "did not print JSON") from None
        status = answer.get("status") if isinstance(answer, dict) else None
        if not isinstance(status, dict) or answer.get("kind") != "ExecCredential":
            raise self._plugin_error(complaint, "did not print an ExecCredential with a status")
        if answer.get("apiVersion") != self._version:
            raise self._plugin_error(complaint, f"did not answer in {self._version}, as the kubeconfig asks for")
        texts = {key: value for key, value in status.items() if isinstance(value, str)}
        token, certificate, key = (texts.get(name, "") for name in ("token", "clientCertificateData", "clientKeyData"))
        if not token and not (certificate and key):
            raise self._plugin_error(complaint, "printed neither a token nor a client certificate with its key")
        if token and not is_sendable(token):
            raise self._plugin_error(complaint, "printed a token with characters that no request may hold")
        if certificate and key and (problem := problem_of_pair(certificate.encode(), key.encode())):
            raise self._plugin_error(complaint, f"printed a client certificate that cannot be used: {problem}")
        expires = math.inf
        if text := status.get("expirationTimestamp"):
            try:
                moment = datetime.fromisoformat(text)
            except (TypeError, ValueError):
                raise self._plugin_error(complaint, "printed an expirationTimestamp that is no time") from None
            expires = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return Credential(
            authorization=f"Bearer {token}" if token else "",
            certificate=certificate if key else "",
            key=key if certificate else "",
            expires=expires,
            renewal=renewal_of(expires),
        )

    def _plugin_error(self, complaint: bytes | None, what: str, fix: str = "") -> CredentialPluginError:
        """Return the error of the plugin, with the end of its stderr, without the values of its variables."""
        text = (complaint or b"").decode(errors="replace")
        for value in sorted(self._env.values(), key=len, reverse=True):
            text = text.replace(value, "***") if len(value) >= _SHORT else text
        lines = [line.strip()[:_COLUMNS] for line in text.splitlines() if line.strip()]
        said = re.sub(r"[^\n -~\u00a0-\U0010ffff]", lambda each: f"\\x{ord(each[0]):02x}", "\n".join(lines[-_LINES:]))
        return CredentialPluginError(
            Finding(
                code=PLUGIN_FAILED,
                what=f"the credential plugin {self._name} {what}",
                where=self._where,
                evidence=said,
                fix=fix
                or "log in again with the tool that the plugin belongs to; kubectl version runs the same plugin",
            )
        )


def _information(cluster: Entry) -> dict[str, Any]:
    """Return what a plugin learns of the cluster."""
    told: dict[str, Any] = {key: cluster.text(key) for key in ("server", "tls-server-name", "proxy-url")}
    told["insecure-skip-tls-verify"] = cluster.flag("insecure-skip-tls-verify")
    told["certificate-authority-data"] = base64.b64encode(cluster.content("certificate-authority")).decode()
    own = (item for item in cluster.parts("extensions") if item.text("name") == "client.authentication.k8s.io/exec")
    told["config"] = next((item.data.get("extension") for item in own), None)
    return {key: value for key, value in told.items() if value}


def _read_tail(file: int, start: int = 0) -> bytes:
    """Return what is in a file without moving the place where a plugin writes."""
    return os.pread(file, _MAX_BYTES, max(start, os.fstat(file).st_size - _MAX_BYTES))


def _write_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
