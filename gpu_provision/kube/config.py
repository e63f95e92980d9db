"""From an inventory, a kubeconfig or a pod's service account to a client of the ``kubernetes`` package.

Kubeconfigs are read here: files merged, and of a context its cluster and user, as entries that know their place. No
message quotes a value: any may be secret, also one that stands in the wrong place.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import ssl
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import yaml

from gpu_provision.kube.credentials import (
    Credential,
    CredentialPlugin,
    Login,
    MemoryFile,
    Transport,
    is_sendable,
    problem_of_pair,
)
from gpu_provision.kube.errors import kubeconfig_error
from gpu_provision.model.findings import Finding, InvalidInventoryError, ProvisionError, UnreachableError, UsageError
from gpu_provision.model.inventory import Inventory

if TYPE_CHECKING:
    from gpu_provision.sandbox.state import Sandbox

_LIST, _MAPPING = "it must be a list", "it must be a mapping"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times faster; not every wheel has it
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A mapping of a kubeconfig."""

    file: Path  # the kubeconfig that has it; relative paths begin at its folder
    location: str  # where it stands there, such as ``users[ada].user``
    data: Mapping[str, Any] = field(repr=False)

    def value_error(self, key: str, reason: str) -> UsageError:
        """Return the error for a value that cannot be used. It is not quoted, as it may be secret."""
        return kubeconfig_error(f"{self.file}: {f'{self.location}.{key}'.removeprefix('.')}", reason)

    def get_typed(self, key: str, kind: type[_T], reason: str) -> _T:
        """Return a value of a type, an empty one for none."""
        value = self.data.get(key)
        if value is None:
            return kind()
        if isinstance(value, kind):
            return value
        raise self.value_error(key=key, reason=reason)

    def text(self, key: str) -> str:
        """Return a string; empty for none."""
        return self.get_typed(key, str, "it must be a string; put it in quotes")

    def flag(self, key: str) -> bool:
        """Return whether a flag is set."""
        return self.get_typed(key, bool, "it must be true or false")

    def part(self, key: str) -> Entry:
        """Return the mapping that a key holds."""
        return Entry(self.file, f"{self.location}.{key}", self.get_typed(key, dict, _MAPPING))

    def parts(self, key: str) -> Iterator[Entry]:
        """Yield the mappings of the list that a key holds."""
        for number, item in enumerate(self.get_typed(key, list, _LIST)):
            if not isinstance(item, dict):
                raise self.value_error(key=f"{key}[{number}]", reason=_MAPPING)
            yield Entry(self.file, f"{self.location}.{key}[{number}]".removeprefix("."), item)

    def content(self, key: str) -> bytes:
        """Return what KEY-data holds in base64, else what the file has that KEY names; empty without both."""
        if encoded := self.text(f"{key}-data"):
            try:
                return base64.b64decode("".join(encoded.split()), validate=True)
            except ValueError:
                raise self.value_error(key=f"{key}-data", reason="it is not base64") from None
        return self.read(key) if self.text(key) else b""

    def read(self, key: str) -> bytes:
        """Return what is in the file that a key names."""
        path = self.file.parent / self.text(key)
        try:
            return path.read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", "") or "no file can have this name"
            raise self.value_error(key=key, reason=f"{path} cannot be read: {reason}") from error


class _SelectedContext(NamedTuple):
    name: str
    cluster: Entry
    user: Entry
    user_name: str


def _default_files() -> list[Path]:
    places = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    return [path for path in (Path(place).expanduser() for place in places if place) if path.exists()]


def _choose(kubeconfig: str, context: str) -> _SelectedContext:
    """Return a context. Of several files the first one that names an entry, or a current context, decides."""
    files = [Path(kubeconfig)] if kubeconfig else _default_files()
    where = os.pathsep.join(map(str, files)) or "the default kubeconfig"
    if not files:
        raise kubeconfig_error(f"context {context!r} of {where}" if context else where, "there is no such file")
    roots = [_root(file) for file in files]
    name = context or next(filter(None, (root.text("current-context") for root in roots)), "")
    if not name:
        raise kubeconfig_error(where, "it has no current-context")
    if (found := _find_named(roots, "context", name)) is None:
        raise kubeconfig_error(where=f"context {name!r} of {where}", reason="there is no such context")
    entries = {kind: _find_named(roots, kind, found.text(kind)) for kind in ("cluster", "user")}
    for kind, entry in entries.items():
        if entry is None and (kind == "cluster" or found.text(kind)):
            raise found.value_error(kind, f"there is no such {kind}")
    no_user = Entry(found.file, found.location, {})  # a context need not have a user
    return _SelectedContext(name, entries["cluster"] or no_user, entries["user"] or no_user, found.text("user"))


# What PyYAML raises of texts such as !!int x, !!bool x, !!timestamp x, and a thousand brackets.
_ODD_SCALARS = (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError)


def _root(file: Path) -> Entry:
    try:
        document = yaml.load(file.read_text(encoding="utf-8-sig"), Loader=_LOADER)  # noqa: S506 - a safe loader
    except OSError as error:
        raise kubeconfig_error(str(file), error.strerror or "it cannot be read") from error
    except UnicodeDecodeError:
        raise kubeconfig_error(str(file), "it is not UTF-8") from None
    except (yaml.YAMLError, *_ODD_SCALARS) as error:  # whose texts quote the file
        mark = getattr(error, "problem_mark", None)
        raise kubeconfig_error(f"{file}:{mark.line + 1}" if mark else str(file), "it is not YAML") from None
    if not isinstance(document, dict):
        raise kubeconfig_error(str(file), "it holds no mapping")
    return Entry(file, "", document)


def _find_named(roots: Iterable[Entry], kind: str, name: str) -> Entry | None:
    """Return what stands under a name in the list of a kind, such as ``user``; None for no name."""
    for root in roots if name else ():
        for entry in root.parts(f"{kind}s"):
            if entry.text("name") == name:
                return Entry(root.file, f"{kind}s[{name}]", {kind: entry.data.get(kind)}).part(kind)
    return None


_TOKEN_SECONDS = 60  # after which a tokenFile is read again, as by kubectl
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def api_client(kubeconfig: str = "", context: str = "") -> tuple[Any, str, str]:
    """Return the ``kubernetes.client.ApiClient`` that a kubeconfig names, and the names of context and user.

    Without a path that is $KUBECONFIG, ~/.kube/config or the pod's service account, which has no names; without a
    context the current one. Nothing is sent yet, but a credential plugin runs, and again before its credential ends and
    when the server refuses it. Raises UsageError, CredentialPluginError.
    """
    from kubernetes import client, config

    settings = client.Configuration()
    settings.keep_alive = True  # a connection that died silently is noticed within minutes
    settings.retries = False  # the caller owns the retries
    settings.connection_pool_maxsize = 24
    if not kubeconfig and not context and not _default_files() and _TOKEN.exists():
        place = "the pod's service account"
        try:
            config.load_incluster_config(client_configuration=settings, try_refresh_token=False)
        except (config.ConfigException, OSError, ValueError) as error:
            raise kubeconfig_error(place, error) from error
        chosen, files = None, list[MemoryFile]()
        login = Login(partial(_token_of_file, Entry(_TOKEN, place, {"tokenFile": _TOKEN.name})))
    else:
        chosen = _choose(kubeconfig, context)
        files, login = _configure_tls(settings, chosen), _login(chosen)
    if authorization := login.credential().authorization:
        # Websockets ask the settings for it, requests the transport.
        settings.api_key["BearerToken"] = authorization
        settings.refresh_api_key_hook = lambda own: own.api_key.update(BearerToken=login.credential().authorization)
    api = client.ApiClient(settings)
    api.rest_client = Transport(settings, login, files)
    api.user_agent = "gpu-provision"
    return (api, chosen.name, chosen.user_name) if chosen else (api, "", "")


def _configure_tls(settings: Any, chosen: _SelectedContext) -> list[MemoryFile]:
    """Let settings name the API server and what TLS needs; return the files to keep as long as they are used."""
    from urllib3.exceptions import InsecureRequestWarning
    from urllib3.util import parse_url

    cluster, user = chosen.cluster, chosen.user
    settings.host = _url(cluster, "server", ("https", "http")).rstrip("/")
    settings.verify_ssl = not cluster.flag("insecure-skip-tls-verify")
    settings.tls_server_name = cluster.text("tls-server-name") or None
    if cluster.data.get("proxy-url") is not None:
        settings.proxy = _url(cluster, "proxy-url", ("http", "https", "socks5", "socks5h"))
    if not settings.verify_ssl:  # finding GP313 says it once, and urllib3 at each request
        host = re.escape((parse_url(settings.host).host or "").strip("[]"))
        warnings.filterwarnings(
            "ignore", f"Unverified HTTPS request is being made to host '{host}'", InsecureRequestWarning
        )
    files: list[MemoryFile] = []

    def path(entry: Entry, key: str, content: bytes) -> str:
        """Return where to read what an entry has: a file of the user's, which may change, or one in memory."""
        if not entry.text(f"{key}-data"):
            return str(entry.file.parent / entry.text(key))
        files.append(MemoryFile(content))
        return files[-1].path

    if authority := cluster.content(_AUTHORITY):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise cluster.value_error(key=_AUTHORITY, reason="it is no certificate in PEM") from None
        settings.ssl_ca_cert = path(cluster, _AUTHORITY, authority)
    certificate, key = user.content(_CERTIFICATE), user.content(_KEY)
    if certificate or key:
        if problem := problem_of_pair(certificate, key):
            raise user.value_error(key=_CERTIFICATE, reason=f"it and {_KEY} are {problem}")
        settings.cert_file = path(user, _CERTIFICATE, certificate)
        settings.key_file = path(user, _KEY, key) if key else None
    return files


_AUTHORITY, _CERTIFICATE, _KEY = "certificate-authority", "client-certificate", "client-key"


def _url(entry: Entry, key: str, schemes: tuple[str, ...]) -> str:
    from urllib3.exceptions import LocationParseError
    from urllib3.util import parse_url

    text = entry.text(key)
    try:
        url = parse_url(text)
    except LocationParseError:
        raise entry.value_error(key=key, reason="it is not a URL") from None
    if url.scheme not in schemes or not url.host:
        raise entry.value_error(key=key, reason=f"it must be a URL that begins with {schemes[0]}://")
    if url.scheme.startswith("socks") and not find_spec("socks"):
        raise entry.value_error(key=key, reason="a SOCKS proxy needs the package PySocks: pip install PySocks")
    return text


def _login(chosen: _SelectedContext) -> Login:
    """Return the login of a user, by the first of its ways in the order of kubectl."""
    user = chosen.user
    if token := user.text("token"):
        return Login(lambda: _bearer(user, "token", token))
    if user.text("tokenFile"):
        return Login(partial(_token_of_file, user))
    if user.data.get("exec") is not None:
        return Login(CredentialPlugin(user.part("exec"), chosen.cluster))
    if user.data.get("auth-provider") is not None:
        return Login(partial(_id_token, user))
    if name := user.text("username"):
        pair = base64.b64encode(f"{name}:{user.text('password')}".encode(errors="surrogateescape")).decode()
        return Login(lambda: Credential(authorization=f"Basic {pair}"))
    return Login(Credential)


def _id_token(user: Entry) -> Credential:
    """Return the token that kubectl keeps for OpenID Connect. Renewing it is kubectl's: any of its commands does so."""
    provider = user.part("auth-provider")
    if provider.text("name") != "oidc":
        what = "Kubernetes 1.26 removed the authentication providers of clouds; name a credential plugin instead (exec)"
        raise user.value_error(key="auth-provider", reason=f"{what}, such as gke-gcloud-auth-plugin or kubelogin")
    token = provider.part("config").text("id-token")
    with suppress(ValueError, LookupError, TypeError, OverflowError, RecursionError):  # not every token says its end
        claims = json.loads(base64.urlsafe_b64decode(f"{token.split('.')[1]}=="))
        if float(claims["exp"]) <= time.time():
            raise provider.value_error(key="config.id-token", reason="the token has expired; kubectl version renews it")
    return _bearer(provider, "config.id-token", token)


def _bearer(user: Entry, key: str, token: str, *, renewal: float = math.inf) -> Credential:
    if not is_sendable(token):
        raise user.value_error(key=key, reason="it is empty, or holds characters that no token may hold")
    return Credential(authorization=f"Bearer {token}", renewal=renewal)


def _token_of_file(user: Entry) -> Credential:
    token = user.read("tokenFile").decode(errors="replace").strip()
    return _bearer(user, "tokenFile", token, renewal=time.time() + _TOKEN_SECONDS)


@contextmanager
def as_findings() -> Iterator[None]:
    """Turn an error of the sandbox into the ProvisionError of the same exit code."""
    from gpu_provision.sandbox.errors import FleetError, NoAnswerError, SandboxError

    try:
        yield
    except SandboxError as error:
        kind = {FleetError: InvalidInventoryError, NoAnswerError: UnreachableError}.get(type(error), ProvisionError)
        raise kind(*(Finding(**asdict(problem)) for problem in error.problems)) from error


def start_sandbox(fleet: str) -> Sandbox:
    """Start the sandbox of a fleet, or return the one that runs. Raises ProvisionError."""
    from gpu_provision.sandbox import lifecycle

    with as_findings():
        return lifecycle.up(fleet)


def find_sandbox(fleet: str) -> Sandbox | None:
    """Return the sandbox of a fleet if it runs and answers; nothing is started. Raises ProvisionError."""
    from gpu_provision.sandbox import lifecycle

    with as_findings():
        return lifecycle.find_running(fleet)


def resolve_context(inventory: Inventory) -> tuple[str, str]:
    """Return path and context that an inventory means, empty for the user's defaults; a sandbox is started.

    Raises ProvisionError if it cannot be.
    """
    if not inventory.cluster.sandbox:
        return inventory.cluster.kubeconfig, inventory.cluster.context
    sandbox = start_sandbox(inventory.cluster.sandbox)
    return str(sandbox.kubeconfig), sandbox.context


def find_context(inventory: Inventory) -> tuple[str, str] | None:
    """Return the same as `resolve_context`, but None for a sandbox that does not run: nothing is started."""
    if not inventory.cluster.sandbox:
        return resolve_context(inventory)
    sandbox = find_sandbox(inventory.cluster.sandbox)
    return (str(sandbox.kubeconfig), sandbox.context) if sandbox else None
